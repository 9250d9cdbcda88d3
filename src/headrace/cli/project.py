"""`headrace init`, `run`, `explain` and `demo`: create a project, run its jobs, show a plan, run the demo."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import print_json, print_line, terminated_like_interrupt
from headrace.demo import Scenario, run_scenario
from headrace.errors import Misuse
from headrace.logs import configure_logging
from headrace.settings import Settings
from headrace.streams.declarations import checked_name

FILES: Final = ("README.md", "headrace.toml", "pipeline.py", "test_pipeline.py", "traffic.py")
PLACEHOLDER: Final = "NAME"


def init(
    name: Annotated[str, typer.Argument(help="Name of the application.")],
    into: Annotated[
        Path | None, typer.Option(help="Directory of the project (default: the name of the application).")
    ] = None,
) -> None:
    """Create a project: a pipeline with three jobs, a traffic generator, tests and settings.

    Existing files are not overwritten.

    Example: headrace init shop
    """
    checked_name(name, "application")
    folder = into or Path(name)
    there = [file for file in FILES if (folder / file).exists()]
    if there:
        raise Misuse(
            f"{folder / there[0]} exists already: choose another folder with --into, or move the file away."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        text = files("headrace.demo").joinpath("starter", file).read_text(encoding="utf-8")
        (folder / file).write_text(text.replace(PLACEHOLDER, name), encoding="utf-8")
    print_line(f"created {', '.join(FILES)} in {folder}")
    go_there = "" if folder == Path() else f"cd {folder} && "
    print_line(f"Run it: {go_there}headrace run pipeline.py")
    print_line(f"{folder / 'README.md'} shows what to do next, in a second terminal.")


def run(
    *,
    pipeline: Annotated[
        Path, typer.Argument(metavar="PIPELINE", help="Python file that defines the application.")
    ],
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Run only this job; repeatable.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process the available records, upstream jobs first, and exit.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="HOST:PORT",
            help="Address of the broker (default: HEADRACE_BROKER, the nearest headrace.toml, "
            "or a broker that runs as long as the jobs).",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark master, such as local[2] or spark://HOST:7077."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Directory of checkpoints, and of the data of a broker started here.",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Stop after this long (seconds).")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="[HOST:]PORT", help="Also run an HTTP gateway here, as long as the jobs."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events as JSON, one document per line.")
    ] = False,
    metrics: options.Metrics = None,
    metrics_allow_remote: options.MetricsAllowRemote = False,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
) -> None:
    """Run the jobs of a file until Ctrl-C.

    Settings come from the headrace.toml next to the file, or in a directory above it, where the state
    directory is too. A job that fails is restarted with exponential backoff, and the reason is printed. A
    failure that a restart cannot fix (an error in the code, a missing topic, an incompatible change, lost
    records) ends the job. Ctrl-C finishes the current batches. The exit code is 1 if a job has failed.

    Example: headrace run pipeline.py --once
    """
    from headrace.streams.command import run_app
    from headrace.streams.pipeline import load_app

    configure_logging(*Settings.read(project=pipeline.parent.absolute()).log(log_level, log_format))
    code = run_app(
        load_app(pipeline),
        jobs=job or (),
        once=once,
        broker=broker,
        master=master,
        state=state,
        seconds=seconds,
        as_json=as_json,
        metrics=metrics,
        metrics_allow_remote=metrics_allow_remote,
        project=pipeline.parent,
        http=http,
    )
    if code:
        raise typer.Exit(code)


def explain(
    *,
    pipeline: Annotated[
        Path, typer.Argument(metavar="PIPELINE", help="Python file that defines the application.")
    ],
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="HOST:PORT",
            help="Address of the broker; needed only to read views of other applications.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show the operators of a job, their state, and which steps are Spark's own.

    The function of the job is called. Nothing is read from topics, and no state is opened.

    Example: headrace explain pipeline.py revenue
    """
    from headrace.streams.command import explain_job
    from headrace.streams.pipeline import load_app

    plan = explain_job(load_app(pipeline), job, broker=broker, project=pipeline.parent)
    if as_json:
        print_json(plan.to_json())
        return
    for line in plan.lines():
        print_line(line)


def demo(
    seconds: Annotated[
        float, typer.Option(help="How long orders arrive after the first results (seconds).")
    ] = 30,
    scenario: Annotated[
        Scenario,
        typer.Option(
            help="shop: everything, on Spark; log: the broker alone, without Spark; "
            "observability: OpenTelemetry logs and metrics, and alerts."
        ),
    ] = Scenario.SHOP,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill the broker, databases and workers of the shop at random.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the web page on 127.0.0.1; 0 takes a free one.")] = 0,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Print the source file of the demo's jobs and exit.")
    ] = False,
) -> None:
    """Run a small shop: change data capture, six jobs, a queue, event sourcing, and a live web page.

    The demo starts PostgreSQL, Redis and a mail server, and removes them at the end. A check continuously
    compares the inputs with the results. With --chaos, the broker, the databases and the workers are killed
    while orders arrive. The scenario `log` shows two consumer groups, a crash of the broker, and that no
    record is lost. The scenario `observability` sends logs and metrics of three services by OpenTelemetry,
    computes error rates and percentiles, and sends alerts; it needs `headrace[tracing]`.

    Example: headrace demo --seconds 20 --chaos
    """
    if pipeline:
        from importlib.resources import files

        name = "observability.py" if scenario is Scenario.OBSERVABILITY else "pipeline.py"
        print_line(files("headrace.demo").joinpath(name).read_text(encoding="utf-8").rstrip())
        return
    from rich.console import Console

    with terminated_like_interrupt():
        held = run_scenario(scenario, Console(), seconds, chaos=chaos, port=port)
    if not held:
        raise typer.Exit(1)
