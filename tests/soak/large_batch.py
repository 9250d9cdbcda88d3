"""A process that writes one large batch into PostgreSQL, with 512 MB for Java, and says how much it needed.

python -m tests.soak.large_batch BROKER DATABASE STATE
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812

from headrace import App, postgres
from headrace.client.cluster import Cluster
from headrace.spark.session import open_session
from headrace.streams.job_run import JobRun
from headrace.streams.run_context import RunContext

ROWS_OF_A_RECORD = 1_000


def peak_mb() -> float:
    """The most memory that this process, the Python half of the driver, has had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main(bootstrap: str, database: str, state: str) -> None:
    app = App("large")
    numbers = app.stream("numbers", "n long")

    @app.job(into=postgres("numbers", key="id", url=database))
    def copied():
        rows = numbers.df.select(
            "n", F.explode(F.sequence(F.lit(0), F.lit(ROWS_OF_A_RECORD - 1))).alias("part")
        )
        number = F.col("n") * ROWS_OF_A_RECORD + F.col("part")
        return rows.select(number.alias("id"), F.concat(F.lit("product-"), number).alias("product"))

    spark = open_session("large", cores=2, more={"spark.driver.memory": "512m"})
    with Cluster.of(bootstrap) as cluster:
        run_context = RunContext(spark=spark, bootstrap=bootstrap, cluster=cluster, state=Path(state))
        run = JobRun(app.jobs[0], run_context, once=True)
        before, begun = peak_mb(), time.monotonic()
        run.start()
        while run.is_active():
            time.sleep(0.1)
    print(json.dumps({"before": before, "peak": peak_mb(), "seconds": time.monotonic() - begun}))


if __name__ == "__main__":
    main(*sys.argv[1:])
