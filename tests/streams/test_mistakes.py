"""Mistakes in a pipeline: one or two sentences that name the user's line, and no restart that cannot help."""

import re
from pathlib import Path

import pytest

from headrace import App
from headrace.streams.pipeline import load_app
from headrace.streams.supervisor import State
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)

HEAD = """
from pyspark.sql import functions as F
from headrace import App, tumbling
app = App("shop")
orders = app.stream("orders", "id string, amount double, at timestamp", event_time="at", watermark_delay="1s")
payments = app.stream("payments", "id string, at timestamp", event_time="at", watermark_delay="1 second")
products = app.table("products", "id string, name string", key="id")
ordrs = app.stream("ordrs", "id string")
unread = app.stream("products", "id strin")
tables = app.table("productz", "id string", key="id")

@app.job(into=app.topic("results", key="id"))
def job():
    BODY
"""
LINE = HEAD.count("\n", 0, HEAD.index("BODY")) + 1

MISTAKES = {
    "a wrong column": ("return orders.df.filter('amout > 1')", r"`amout` cannot be resolved.*`amount`.*LINE"),
    "a missing topic": (
        "return ordrs.df",
        r"the topic 'ordrs' does not exist\. Did you mean 'orders'\? Create it with `headrace topic create "
        r"ordrs`, or declare it with partitions=4 to have it created \(pipeline\.py, line 8\)\.",
    ),
    "the missing topic of a table": (
        "return orders.join(tables, on='id', as_of='latest')",
        r"the topic 'productz' does not exist\. Did you mean 'products'\?.*\(pipeline\.py, line 10\)\.",
    ),
    "a bad schema": (
        "return unread.df",
        r"the stream of 'products': 'id strin' is not a schema: .*STRIN.*\(pipeline\.py, line 9\)",
    ),
    "a wrong keyword": (
        "return orders.join(payments, on='id', withing='1 minute')",
        r"a join of two streams has no argument 'withing'\. Did you mean 'within'\? It takes .*LINE",
    ),
    "a wrong keyword of a function": (
        "return orders.window(tumbling('1 minute', ofset='1 second')).agg(F.count('*'))",
        r"TypeError: tumbling\(\) got an unexpected keyword argument 'ofset'\. Did you mean 'offset'\? LINE",
    ),
    "a join without a bound": (
        "return orders.join(payments, on='id')",
        r"a join of two streams needs within=: how far apart .* LINE",
    ),
    "an aggregation without a window": (
        "return orders.df.groupBy('id').agg(F.sum('amount').alias('n'))",
        r"Results of an aggregation without a window change with every row.*into=app\.view.*"
        r"\(pipeline\.py, line 12, in job\)",
    ),
    "a window that SQL has and streams have not": (
        "return app.sql('SELECT id, row_number() OVER (PARTITION BY id ORDER BY amount) AS n FROM orders')",
        r"\.top\(…\).*\(pipeline\.py, line 12, in job\)",
    ),
    "an argument of a wrong type": (
        "return orders.df.limit('two')",
        r"Spark has no limit\(\[String\]\): an argument has a type that this function does not take\. LINE",
    ),
    "an aggregate that windows do not have": (
        "return orders.window(tumbling('1 minute')).agg(F.skewness('id').alias('id'))",
        r"a window cannot compute skewness.*groupBy.*LINE",
    ),
    "a window's end that is left out": (
        "return orders.window(tumbling('1 minute'), by='id').agg(F.count('*').alias('n'))"
        ".transform(lambda df: df.select('id', 'n'))",
        r"the function given to transform\(\) left out 'window_end'.* LINE",
    ),
    "a key that is no column": (
        "return orders.df.select('amount')",
        r"topic 'results' is keyed by 'id', but the rows have only the columns 'amount'\. "
        r"\(pipeline\.py, line 12, in job\)$",
    ),
    "nothing that is returned": (
        "orders.df",
        r"job 'job' returned NoneType: its function has to return .* \(pipeline\.py, line 12, in job\)$",
    ),
    "a name that is not there": ("return order.df", r"NameError: name 'order' is not defined.* LINE"),
}


def pipeline(folder: Path, body: str) -> App:
    file = folder / "pipeline.py"
    file.write_text(HEAD.replace("BODY", body))
    return load_app(file)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_line_and_not_tried_again(
    mistake: str, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.create("orders", "payments", "products")
    body, expected = MISTAKES[mistake]
    place = rf"\(pipeline\.py, line {LINE}, in job\)$"
    assert workshop.run_once(pipeline(tmp_path, body)) == 1
    (news,) = workshop.recorder.news
    assert news.state is State.FAILED
    assert re.search(expected.replace("LINE", place), news.text), news.text
    assert len(news.text) < 700
    once = news.text

    assert workshop.run_until_failed(pipeline(tmp_path, body)) == 1
    (news,) = workshop.recorder.news
    assert (news.state, news.text) == (State.FAILED, once)


def test_a_topic_that_is_declared_with_partitions_is_created(workshop: Workshop) -> None:
    app = App("shop")
    orders = app.stream("declared", "id string", partitions=3)
    products = app.table("table", "id string, name string", key="id", partitions=2)

    @app.job(into=app.topic("named"))
    def named() -> object:
        return orders.join(products, on="id", as_of="latest")

    assert workshop.run_once(app) == 0
    assert workshop.partitions("declared", "table") == [3, 2]
