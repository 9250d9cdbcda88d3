"""The fixture `headrace_broker` in a pytest run of its own, as a user's project has it."""

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _whole_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Hypothesis in it, whose plugin is loaded by every run of pytest here."""
    monkeypatch.delenv("PYTHONPATH")


BROKERS = """
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    def test_round_trip(headrace_broker):
        producer = Producer({"bootstrap.servers": headrace_broker.bootstrap})
        producer.produce("orders", b"tea")
        assert producer.flush(100) == 0
        settings = {"group.id": "shop", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings | {"bootstrap.servers": headrace_broker.bootstrap})
        consumer.subscribe(["orders"])
        assert consumer.poll(100).value() == b"tea"
        consumer.close()

    def topics(broker):
        found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=100).topics
        return [name for name in found if not name.startswith("__")]

    def create(broker, name):
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(100)

    def test_one(headrace_broker):
        assert topics(headrace_broker) == []
        create(headrace_broker, "orders")

    def test_another(headrace_broker):
        assert topics(headrace_broker) == []
        create(headrace_broker, "orders")
"""


def run(pytester: pytest.Pytester, program: str) -> pytest.RunResult:
    """The outcome of a test file in a process of its own, with nothing but what the package brings."""
    pytester.makepyfile(program)
    return pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")


def test_every_test_that_asks_for_a_broker_gets_one_of_its_own(pytester: pytest.Pytester) -> None:
    run(pytester, BROKERS).assert_outcomes(passed=3)


def test_a_project_that_does_not_ask_for_a_broker_does_not_load_one(pytester: pytest.Pytester) -> None:
    program = """
        import sys

        def test_nothing_is_loaded():
            assert "headrace.broker.broker" not in sys.modules
            assert "kio" not in sys.modules
    """
    run(pytester, program).assert_outcomes(passed=1)
