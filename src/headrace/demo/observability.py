"""The pipeline of the scenario `observability`: error rates, percentiles, anomalies and alerts.

An OpenTelemetry SDK sends logs and metrics to the HTTP gateway, which stores them in the topics of this file.
`headrace demo --scenario observability` runs it; docs/observability.md explains it.
"""

import os

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import Aggregator, App, Groups, Rows, Sink, Topic, email, sliding, tumbling, webhook
from headrace.gateway.otlp import LOGS_SCHEMA, METRICS_SCHEMA

app = App("observability")
DURATION = "http.server.request.duration"  # the histogram of OpenTelemetry's conventions for HTTP servers

# Where alerts go. The SMTP server is that of HEADRACE_SMTP.
WEBHOOK = os.environ.get("ALERT_WEBHOOK", "http://127.0.0.1:8000/alerts")
SECRET = os.environ.get("ALERT_SECRET", "change this secret")
ON_CALL = os.environ.get("ALERT_MAIL", "on-call@example.com")

logs = app.stream("otel.logs", LOGS_SCHEMA, event_time="time", watermark_delay="1 minute", partitions=4)
metrics = app.stream(
    "otel.metrics", METRICS_SCHEMA, event_time="time", watermark_delay="1 minute", partitions=4
)
ERROR_RATE = app.view("error_rate", key=("window_start", "service"))
LATENCY = app.view("latency", key=("window_start", "service"))


@app.job(into=ERROR_RATE)
def error_rate() -> Rows:
    """The share of errors in the logs of a service in the last five minutes, every minute."""
    errors = F.expr("count_if(severity_number >= 17)")
    return logs.window(sliding("5 minutes", every="1 minute"), by="service").agg(
        F.count("*").alias("logs"), errors.alias("errors"), (errors / F.count("*")).alias("rate")
    )


class Percentiles(Aggregator):
    """The 50th, 95th and 99th percentile of histograms, interpolated in their buckets as Prometheus does."""

    state = "bounds array<double>, counts array<bigint>"
    result = "array<double>"

    def accumulate(self, groups: Groups, bound: pa.Array, count: pa.Array) -> dict[str, pa.Array]:
        return {"bounds": groups.aggregate(bound, "list"), "counts": groups.aggregate(count, "list")}

    def merge(self, groups: Groups, states: pa.RecordBatch) -> dict[str, pa.Array]:
        return {name: groups.concat(states[name]) for name in ("bounds", "counts")}

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        histograms = zip(states["bounds"].to_pylist(), states["counts"].to_pylist(), strict=True)
        return pa.array([percentiles(*each) for each in histograms], pa.list_(pa.float64()))


def percentiles(bounds: list[float], counts: list[int]) -> list[float]:
    """Percentiles of buckets with these upper bounds; above the last finite bound it is that bound."""
    edges, bucket = np.unique(bounds, return_inverse=True)
    reached = np.bincount(bucket, weights=counts).cumsum()
    edges[-1] = edges[-2]
    ranks = np.array([0.5, 0.95, 0.99]) * reached[-1]
    found: list[float] = np.interp(ranks, [0, *reached], [0, *edges]).tolist()
    return found


def buckets(df: DataFrame) -> DataFrame:
    """A row for each bucket of the histograms of durations; the bounds lack that of the last bucket."""
    points = df.where(f"metric = '{DURATION}' AND temporality = 'delta' AND size(bounds) > 0")
    all_bounds = "concat(bounds, array(double('infinity')))"
    pairs = f"zip_with({all_bounds}, bucket_counts, (b, n) -> named_struct('bound', b, 'n', n))"
    return points.selectExpr("time", "service", f"inline({pairs})")


@app.job(into=LATENCY)
def latency() -> Rows:
    """Percentiles of the request durations of a service, minute by minute, in seconds."""
    durations = metrics.transform(buckets).window(tumbling("1 minute"), by="service")
    found = durations.agg(F.sum("n").alias("requests"), Percentiles()("bound", "n").alias("p"))
    return found.transform(
        lambda df: df.selectExpr("*", "p[0] AS p50", "p[1] AS p95", "p[2] AS p99").drop("p")
    )


rates = app.stream(ERROR_RATE, event_time="window_start", watermark_delay="10 minutes")
minutes = app.stream(LATENCY, event_time="window_start", watermark_delay="1 minute")


def alerts(name: str) -> list[Sink | Topic]:
    """A webhook and an e-mail for each row; each is sent once. A view shows the rows."""
    mail = email(
        ON_CALL,
        sender="alerts@example.com",
        subject="{service}: {alert}",
        body="In the window from {window_start} UTC",
    )
    return [webhook(WEBHOOK, secret=SECRET, type=f"alert.{name}"), mail, app.view(name, key="service")]


@app.job(into=alerts("error_alerts"))
def error_alerts() -> Rows:
    """An alert when more than 10 % of at least 20 logs are errors; one per service and hour."""
    text = "format_string('%.0f %% errors in five minutes', 100 * rate) AS alert"
    high = rates.transform(lambda df: df.where("logs >= 20 AND rate > 0.1").selectExpr("*", text))
    return high.deduplicate("service", within="1 hour")


@app.job(into=alerts("latency_alerts"))
def latency_alerts() -> Rows:
    """An alert when the 95th percentile of a minute is far above those of the hour before it."""
    before = F.count("*") - 1  # the window ends with the minute itself
    mean = (F.sum("p95") - F.last("p95")) / before
    squares = (F.expr("sum(p95 * p95)") - F.last("p95") * F.last("p95")) / before
    hour = minutes.window(sliding("61 minutes"), by="service").agg(
        F.last("p95").alias("p95"),
        before.alias("minutes"),
        mean.alias("mean"),
        F.sqrt(F.greatest(squares - mean * mean, F.lit(0.0))).alias("deviation"),
    )
    text = "format_string('95th percentile %.2f s, in the hour before %.2f s', p95, mean) AS alert"
    unusual = "minutes >= 10 AND p95 > mean + 4 * greatest(deviation, mean / 10)"
    found = hour.transform(lambda df: df.where(unusual).selectExpr("*", text))
    return found.deduplicate("service", within="1 hour")


if __name__ == "__main__":
    app.run()
