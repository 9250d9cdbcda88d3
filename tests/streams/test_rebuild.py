"""A view that is rebuilt beside the one that is read."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.errors import Misuse
from headrace.feeds.catalog import UnknownView
from headrace.streams.job_folder import JobFolder
from headrace.streams.runner import Runner, RunOptions
from headrace.testing import EmbeddedBroker
from tests.cli.terminal import wait_until
from tests.streams.workshop import Recorder, Workshop

pytestmark = pytest.mark.timeout(240)


def view(app: App) -> Any:
    return app.view("revenue", key="product", partitions=2)


class Shop(Workshop):
    """Runs of an application whose view says what each product has earned, from some amount on."""

    def runner(self, *, least: float, once: bool = True, into: Callable[[App], Any] = view) -> Runner:
        app = App("shop")
        orders = app.stream("orders", "product string, amount double", partitions=4)

        @app.job(into=into(app))
        def revenue() -> DataFrame:
            sums = orders.df.groupBy("product").agg(F.sum("amount").alias("revenue"))
            return sums.filter(F.col("revenue") >= least)

        self.recorder = Recorder()
        return Runner(RunOptions(app=app, once=once, broker=self.bootstrap, state=self.state), self.recorder)

    @contextmanager
    def running_in_a_thread(self, *, least: float) -> Iterator[None]:
        runner = self.runner(least=least, once=False)
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            yield
        finally:
            runner.stop()
            thread.join(100)

    def sell(self, product: str, amount: float) -> None:
        self.write("orders", {"product": product, "amount": amount})

    def rebuild_from_start(self) -> None:
        JobFolder.of(self.state, "shop", "revenue").beside.reset(kind="start")

    def changes(self, since: str | None = None) -> list[Any]:
        return list(App("shop").changes("revenue", since=since, follow=False, broker=self.bootstrap))

    def rows(self) -> dict[str, float]:
        try:
            return {change.row["product"]: change.row["revenue"] for change in self.changes()}
        except UnknownView:
            return {}

    def topics(self) -> set[str]:
        return set(AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=100).topics)


@pytest.fixture
def shop(spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    shop = Shop(headrace_broker.bootstrap, tmp_path)
    shop.sell("tea", 3.0)
    shop.sell("cup", 0.5)
    return shop


def test_readers_see_the_old_rows_until_the_new_ones_are_there_and_the_old_job_runs_till_then(
    shop: Shop,
) -> None:
    old = Shop(shop.bootstrap, shop.state)
    with old.running_in_a_thread(least=0):
        wait_until(lambda: shop.rows() == {"tea": 3.0, "cup": 0.5}, "the old rows", deadline_s=60)
        token = shop.changes()[-1].token
        shop.rebuild_from_start()
        assert shop.runner(least=1).run() == 0
    assert "was rebuilt by another process" in old.recorder.news[-1].text
    assert [(change.kind, change.key) for change in shop.changes(token)] == [("delete", {"product": "cup"})]
    assert not [name for name in shop.topics() if "rebuild" in name]

    shop.sell("cup", 0.6)  # the state that was made aside knows of the half that came before
    assert shop.runner(least=1).run() == 0
    assert shop.rows() == {"tea": 3.0, "cup": 1.1}


def test_a_rebuild_that_is_cut_is_not_seen_and_is_done_by_the_next_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.runner(least=0).run() == 0
    shop.rebuild_from_start()

    def cut(*_: object, **__: object) -> int:
        raise Misuse("a cut on purpose")

    with monkeypatch.context() as broken:
        broken.setattr("headrace.streams.rebuild.write_differences", cut)
        assert shop.runner(least=1).run() == 1
    assert shop.recorder.news[-1].text.startswith("a cut on purpose")
    assert shop.rows() == {"tea": 3.0, "cup": 0.5}

    assert shop.runner(least=1).run() == 0, shop.recorder.news
    assert shop.rows() == {"tea": 3.0}


def test_only_a_view_is_rebuilt_beside_itself(shop: Shop) -> None:
    shop.rebuild_from_start()
    with pytest.raises(Misuse, match="no view"):
        shop.runner(least=0, into=lambda app: app.topic("revenue")).run()
