"""The duration of a micro-batch with few rows, from topic to topic, after warm-up."""

from bench.readings import percentile
from bench.spark.stage import Stage
from bench.spark.topics import trickle
from bench.topics import delete_topic, new_topic

MEASURE = "micro-batch, warm"
STATELESS, WINDOWED = "filter", "one-minute windows"
PER_SECOND = 200


def measure_latency(stage: Stage) -> None:
    """Run the same queries with each sink of each system, while a topic is fed slowly."""
    for name in (STATELESS, WINDOWED):
        for program in stage.programs:
            system = program.system
            for sink in system.updating_sinks if name == WINDOWED else system.sinks:
                source, target = new_topic(stage.bootstrap), new_topic(stage.bootstrap)
                with trickle(stage.bootstrap, source, per_second=PER_SECOND):
                    outcome = program.ask(
                        "latency",
                        bootstrap=stage.bootstrap,
                        source=source,
                        topic=target,
                        name=sink,
                        windowed=name == WINDOWED,
                        batches=stage.plan.latency_batches,
                        warm_up=stage.plan.latency_warm_up,
                    )
                _note(stage, system.name, f"{name}, {sink}", sorted(outcome["milliseconds"]))
                delete_topic(stage.bootstrap, source)
                delete_topic(stage.bootstrap, target)


def _note(stage: Stage, system: str, cell: str, ordered: list[float]) -> None:
    for percent in (50, 95):
        stage.read(system, MEASURE, f"{cell}, p{percent}", {"ms": percentile(ordered, percent)})
