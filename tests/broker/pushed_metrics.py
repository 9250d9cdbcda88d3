"""OTLP metrics as clients of Kafka push them."""

from collections.abc import Mapping, Sequence

from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData


def otlp_metrics(metrics: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]) -> bytes:
    """Gauges by their names, each with points of labels and a value."""
    message = MetricsData()
    scope = message.resource_metrics.add().scope_metrics.add()
    for name, points in metrics.items():
        metric = scope.metrics.add(name=name)
        for labels, value in points:
            point = metric.gauge.data_points.add(as_double=value)
            for key, text in labels.items():
                point.attributes.add(key=key).value.string_value = text
    return message.SerializeToString()
