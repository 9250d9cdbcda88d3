"""The fast path, the reference and Spark's from_json say the same."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.columns.values.assembly import ReferenceValue
from tests.columns.values.comparing import fast, plain, reference
from tests.columns.values.json_documents import DDL, TYPE, damaged_documents, documents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_bytes = st.binary(max_size=40)
_values = st.lists(
    st.one_of(st.none(), _bytes, st.one_of(documents, damaged_documents).map(lambda text: text.encode())),
    max_size=12,
)


def from_json(
    spark: "SparkSession", ddl: str, texts: Sequence[str], time_zone: str = "UTC"
) -> list[ReferenceValue]:
    """What Spark says; an answer with an error is a corrupt record."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

    options = {"columnNameOfCorruptRecord": "_corrupt", "timeZone": time_zone}
    rows = spark.createDataFrame([(text,) for text in texts], "text string")
    parsed = rows.select(F.from_json("text", f"{ddl}, _corrupt string", options).alias("parsed"))
    answers = []
    for record in parsed.toArrow().column("parsed"):
        fields = plain(record)
        corrupt = fields.pop("_corrupt")
        answers.append(ReferenceValue(fields, None) if corrupt is None else ReferenceValue(None, "corrupt"))
    return answers


@settings(max_examples=400, deadline=None)
@given(_values, st.sampled_from(["UTC", "Europe/Berlin"]))
def test_the_fast_path_and_the_reference_say_the_same(values: list[bytes | None], time_zone: str) -> None:
    assert fast(TYPE, values, time_zone) == reference(TYPE, values, time_zone)


def many_documents() -> list[str]:
    """Some hundred different documents: asked about all at once, Spark answers in one query."""
    found: dict[str, None] = {}

    @settings(
        max_examples=100, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(documents, min_size=10, max_size=30))
    def collect(texts: list[str]) -> None:
        found.update(dict.fromkeys(texts))

    collect()
    return list(found)


def test_a_value_is_that_of_spark_and_an_error_is_corrupt_to_spark(spark: "SparkSession") -> None:
    texts = many_documents()
    # Spark takes every number for seconds.
    ours = fast(TYPE, [text.encode() for text in texts], time_unit="s")
    theirs = from_json(spark, DDL, texts)
    differences = [
        (text, our, their)
        for text, our, their in zip(texts, ours, theirs, strict=True)
        if (our.error is None) != (their.error is None) or our.value != their.value
    ]
    assert not differences, differences[0]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("{'tiny':1}", "not JSON: expected a name in double quotes at character 2"),
        ('{"tiny":1} {"tiny":2}', "not JSON: expected nothing more at character 12"),
        ('{"tiny":200}', "tiny: 200 is not a byte"),
        ('{"name":"\\ud800"}', "name: an unpaired surrogate is not a character"),
        ('{"day":"12026-01-01"}', 'day: "12026-01-01" is not a date'),
        ('{"day":"1"}', 'day: "1" is not a date'),
        ('{"at":"12:30"}', 'at: "12:30" is not a timestamp'),
        ('{"at":99999999999999999999}', "at: 99999999999999999999 is not a timestamp"),
        ('{"bytes":"aGVs bG8="}', 'bytes: "aGVs bG8=" is not a base64 string'),
    ],
)
def test_what_spark_reads_and_we_do_not(value: str, error: str) -> None:
    assert fast(TYPE, [value.encode()]) == [ReferenceValue(None, error)]


def test_spark_reads_what_we_do_not_and_rewrites_text_that_we_keep(spark: "SparkSession") -> None:
    refused = [
        "{'tiny':1}",
        '{"tiny":1} {"tiny":2}',
        '{"tiny":200}',
        '{"name":"\\ud800"}',
        '{"day":"1"}',
        '{"at":"12:30"}',
    ]
    rewritten = ['{"name":1.10}', '{"name":[1, 2]}']
    theirs = from_json(spark, "tiny tinyint, name string, day date, at timestamp", refused + rewritten)
    assert [their.error for their in theirs] == [None] * len(theirs)
    assert [their.value["name"] for their in theirs[-2:]] == ["1.1", "[1,2]"]
    ours = fast(TYPE, [text.encode() for text in rewritten])
    assert [our.value["name"] for our in ours] == ["1.10", "[1, 2]"]
