"""Tables of a real PostgreSQL as topics: a snapshot, and then every committed change, once."""

from headrace.client.cluster import Cluster
from tests.capture.database import Database, read_topic
from tests.cli.terminal import wait_until

USERS = "CREATE TABLE users (id bigint PRIMARY KEY, name text, city text)"
TOPIC = "shop.public.users"


def test_a_snapshot_is_followed_by_changes(database: Database) -> None:
    database.run(USERS, "INSERT INTO users VALUES (1, 'Anna', 'Rome'), (2, 'Bob', NULL)")
    assert database.capture("users") == 2
    database.run(
        "INSERT INTO users VALUES (3, 'Carl', 'Oslo')",
        "UPDATE users SET city = 'Paris' WHERE id = 1",
        "DELETE FROM users WHERE id = 2",
    )
    assert database.capture("users") == 4
    assert database.events(TOPIC) == [
        ("1", "r", None, {"id": 1, "name": "Anna", "city": "Rome"}),
        ("2", "r", None, {"id": 2, "name": "Bob", "city": None}),
        ("3", "c", None, {"id": 3, "name": "Carl", "city": "Oslo"}),
        ("1", "u", None, {"id": 1, "name": "Anna", "city": "Paris"}),
        ("2", "d", {"id": 2}, None),
    ]
    assert database.records(TOPIC)[-1] == ("2", None)
    assert database.capture("users") == 0


def test_an_event_names_its_source(database: Database) -> None:
    database.run(USERS)
    database.capture("users")
    database.run("INSERT INTO users VALUES (1, 'Anna', 'Rome')")
    (xid,) = database.connection.execute("SELECT xmin::text::bigint FROM users").fetchone() or ()
    database.capture("users")
    ((_, event),) = database.records(TOPIC)
    source = event["source"]
    assert (source["db"], source["schema"], source["table"]) == (database.name, "public", "users")
    assert (source["name"], source["connector"], source["snapshot"]) == ("shop", "postgresql", "false")
    assert source["txId"] == xid
    assert source["lsn"] > 0
    assert source["ts_ms"] <= event["ts_ms"]


def test_changes_are_streamed_while_the_capture_runs(database: Database) -> None:
    database.run(USERS)
    with database.capturing("users"):
        database.run("INSERT INTO users VALUES (1, 'Anna', 'Rome')")
        wait_until(lambda: database.table(TOPIC), "the first change")
        database.run("DELETE FROM users")
        wait_until(lambda: not database.table(TOPIC), "the second change")
    assert [op for _, op, *_ in database.events(TOPIC)] == ["c", "d"]


def test_an_update_of_the_key_is_a_delete_and_an_insert(database: Database) -> None:
    database.run(USERS, "INSERT INTO users VALUES (1, 'Anna', 'Rome')")
    database.capture("users")
    database.run("UPDATE users SET id = 9 WHERE id = 1")
    database.capture("users")
    assert database.events(TOPIC)[1:] == [
        ("1", "d", {"id": 1}, None),
        ("9", "c", None, {"id": 9, "name": "Anna", "city": "Rome"}),
    ]
    assert list(database.table(TOPIC)) == ["9"]


def test_rolled_back_changes_are_not_captured(database: Database) -> None:
    database.run(USERS)
    database.capture("users")
    with database.connection.transaction(force_rollback=True):
        database.run("INSERT INTO users VALUES (1, 'Anna', 'Rome')")
    database.run("INSERT INTO users VALUES (2, 'Bob', 'Oslo')")
    assert database.capture("users") == 1


def test_tables_of_several_schemas_are_captured_by_pattern(database: Database) -> None:
    database.run(
        "CREATE SCHEMA sales",
        'CREATE TABLE sales."Order Lines" (a int, b text, PRIMARY KEY (b, a))',
        'INSERT INTO sales."Order Lines" VALUES (1, $$it\'s "x"$$)',
        USERS,
        "CREATE TABLE public.other (id int PRIMARY KEY)",
    )
    database.capture("sales.*", "users")
    ((key, event),) = database.records("shop.sales.Order_Lines")
    assert key == '{"a":1,"b":"it\'s \\"x\\""}'
    assert event["after"] == {"a": 1, "b": 'it\'s "x"'}
    with Cluster.of(database.bootstrap) as cluster:
        assert "shop.public.other" not in cluster.topics()


def test_a_table_that_is_added_later_gets_its_own_snapshot(database: Database) -> None:
    database.run(USERS, "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    database.capture("users")
    database.run("INSERT INTO users VALUES (1, 'Anna', 'Rome')", "INSERT INTO orders VALUES (2)")
    database.capture("users", "orders")
    database.run("INSERT INTO orders VALUES (3)")
    database.capture("users", "orders")
    assert [(key, op) for key, op, *_ in database.events("shop.public.orders")] == [
        ("1", "r"),
        ("2", "r"),
        ("3", "c"),
    ]
    assert [(key, op) for key, op, *_ in database.events(TOPIC)] == [("1", "c")]


def test_a_topic_of_several_partitions_keeps_the_changes_of_a_row_together(database: Database) -> None:
    database.run(USERS, "INSERT INTO users SELECT g, 'n', 'c' FROM generate_series(1, 50) g")
    database.capture("users", partitions=3)
    database.run("UPDATE users SET city = 'Oslo'")
    database.capture("users", partitions=3)
    places: dict[bytes, set[int]] = {}
    for message in read_topic(database.bootstrap, TOPIC, raw=True):
        places.setdefault(message.key(), set()).add(message.partition())
    assert len(places) == 50
    assert all(len(each) == 1 for each in places.values())
    assert len(set.union(*places.values())) == 3


def test_timestamps_are_commit_times_that_never_decrease(database: Database) -> None:
    database.run(USERS, "INSERT INTO users VALUES (1, 'Anna', 'Rome')")
    database.capture("users")
    database.run("UPDATE users SET city = 'Oslo'", "UPDATE users SET city = 'Bonn'")
    database.capture("users")
    messages = read_topic(database.bootstrap, TOPIC, raw=True)
    times = [message.timestamp()[1] for message in messages]
    assert times == sorted(times)
    _, event = database.records(TOPIC)[-1]
    assert times[-1] == event["source"]["ts_ms"]
