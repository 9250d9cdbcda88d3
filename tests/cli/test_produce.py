import json
import subprocess

import pytest

from tests.cli.terminal import DEADLINE_S, Terminal, interrupt


def read(terminal: Terminal, topic: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in terminal.do("consume", topic, "--until", "end", "--json").lines]


def test_each_line_is_a_record(terminal: Terminal, topic: str) -> None:
    assert (
        terminal.do("produce", topic, stdin="first\n\nthird without a newline").out
        == "3 records acknowledged\n"
    )
    assert [record["value"] for record in read(terminal, topic)] == ["first", "", "third without a newline"]


def test_one_record_is_counted_in_the_singular(terminal: Terminal, topic: str) -> None:
    assert terminal.do("produce", topic, stdin="first\n").out == "1 record acknowledged\n"


def test_bytes_that_are_not_text_arrive_as_they_are(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, stdin=b"\xff\x00\xfe\n")
    (record,) = read(terminal, topic)
    assert record["value_base64"] == "/wD+"
    assert "value" not in record


def test_a_key_and_headers_go_with_every_record(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, "--key", "k", "--header", "a:1", "--header", "b:x:y", stdin="v\nw\n")
    records = read(terminal, topic)
    assert [record["key"] for record in records] == ["k", "k"]
    assert [record["headers"] for record in records] == [{"a": "1", "b": "x:y"}] * 2


def test_a_separator_splits_key_and_value_once(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, "--key-separator", "::", stdin="k::v::w\n::no key\n")
    assert [(record["key"], record["value"]) for record in read(terminal, topic)] == [
        ("k", "v::w"),
        ("", "no key"),
    ]


def test_a_line_without_its_separator_is_named(terminal: Terminal, topic: str) -> None:
    outcome = terminal.run("produce", topic, "-K", ":", stdin="a:1\nb\nc:3\n")
    assert outcome.code == 1
    assert "line 2 has no ':'" in outcome.err
    assert "1 record acknowledged" in outcome.err
    assert [record["value"] for record in read(terminal, topic)] == ["1"]


def test_a_line_of_json_says_everything_about_its_record(terminal: Terminal, wide_topic: str) -> None:
    line = {
        "key": "k",
        "value": {"amount": 20, "who": "Zoë"},
        "headers": {"one": "1", "two": ["a", "b"], "none": None},
        "headers_base64": {"raw": "/w=="},
        "partition": 2,
        "timestamp": 1700000000000,
    }
    terminal.do("produce", wide_topic, "--json", stdin=json.dumps(line) + "\n\n")
    (record,) = read(terminal, wide_topic)
    assert record == {
        "topic": wide_topic,
        "partition": 2,
        "offset": 0,
        "timestamp": 1700000000000,
        "key": "k",
        "value": '{"amount":20,"who":"Zoë"}',
        "headers": {"one": "1", "two": ["a", "b"], "none": None},
        "headers_base64": {"raw": "/w=="},
    }


def test_a_value_of_null_is_a_tombstone(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, "--json", stdin='{"key": "k", "value": null}\n')
    assert read(terminal, topic)[0]["value"] is None


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"vaule": 1}', "Did you mean 'value'?"),
        ('{"key": "k"}', "has no 'value'"),
        ('{"value": 1, "value_base64": "AA=="}', "has both"),
        ('{"value_base64": "?"}', "not base64"),
        ('{"value": 1, "partition": "x"}', "'partition'"),
        ('{"value": 1, "timestamp": "noon"}', "'timestamp'"),
        ('{"value": 1, "headers": [1]}', "'headers'"),
        ('{"value": "\\ud800"}', "not Unicode"),
    ],
)
def test_a_bad_line_of_json_is_refused_with_its_number(
    terminal: Terminal, topic: str, line: str, complaint: str
) -> None:
    outcome = terminal.run("produce", topic, "--json", stdin=f'{{"value": 1}}\n{line}\n{{"value": 3}}\n')
    assert outcome.code == 1
    assert outcome.err.startswith("error: line 2 ")
    assert complaint in outcome.err
    assert [record["value"] for record in read(terminal, topic)] == ["1"]


def test_what_consume_prints_as_json_can_be_produced_again(
    terminal: Terminal, topic: str, wide_topic: str
) -> None:
    terminal.do("produce", wide_topic, "-K", ":", "-H", "n:v", stdin=b"a:1\nb:\xff\nc:3\n")
    printed = terminal.do("consume", wide_topic, "--until", "end", "--json").out
    single = "\n".join(json.dumps({**json.loads(line), "partition": 0}) for line in printed.splitlines())
    terminal.do("produce", topic, "--json", stdin=single)

    def essence(name: str) -> list[str]:
        fields = ("key", "value", "value_base64", "headers", "timestamp")
        return sorted(json.dumps([record.get(field) for field in fields]) for record in read(terminal, name))

    assert essence(topic) == essence(wide_topic)


def test_a_partition_can_be_chosen(terminal: Terminal, wide_topic: str) -> None:
    terminal.do("produce", wide_topic, "--partition", "1", stdin="a\nb\n")
    assert {record["partition"] for record in read(terminal, wide_topic)} == {1}


def test_a_partition_that_is_not_there_is_refused(terminal: Terminal, wide_topic: str) -> None:
    outcome = terminal.run("produce", wide_topic, "--partition", "3", stdin="a\n")
    assert outcome.code == 1
    assert "its partitions are 0 to 2" in outcome.err


def test_a_key_goes_where_the_java_client_puts_it(terminal: Terminal, wide_topic: str) -> None:
    # Utils.murmur2 of these keys, made positive, modulo 3, as Kafka's own tests of the hash have it.
    terminal.do("produce", wide_topic, "-K", ":", stdin="21:x\nfoobar:x\n")
    placed = {record["key"]: record["partition"] for record in read(terminal, wide_topic)}
    assert placed == {"21": (-973932308 & 0x7FFFFFFF) % 3, "foobar": (-790332482 & 0x7FFFFFFF) % 3}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_back(terminal: Terminal, topic: str, codec: str) -> None:
    terminal.do("produce", topic, "--compression", codec, stdin="x" * 1000 + "\n")
    assert read(terminal, topic)[0]["value"] == "x" * 1000


@pytest.mark.parametrize(("acks", "word"), [("0", "sent"), ("1", "acknowledged"), ("all", "acknowledged")])
def test_acks_decide_what_is_claimed(terminal: Terminal, topic: str, acks: str, word: str) -> None:
    assert terminal.do("produce", topic, "--acks", acks, stdin="a\nb\n").out == f"2 records {word}\n"


def test_a_record_that_the_broker_refuses_is_named_by_its_line(terminal: Terminal, topic: str) -> None:
    terminal.do("topic", "alter", topic, "--config", "max.message.bytes=1000")
    outcome = terminal.run("produce", topic, stdin="short\n" + "x" * 5000 + "\n")
    assert outcome.code == 1
    assert "line 2 was not accepted" in outcome.err
    assert "MSG_SIZE_TOO_LARGE" in outcome.err


def test_options_that_contradict_each_other_are_a_misuse(terminal: Terminal, topic: str) -> None:
    for options in (["--json", "--key", "k"], ["--key", "k", "-K", ":"], ["-K", ""], ["--header", "novalue"]):
        assert terminal.run("produce", topic, *options, stdin="a\n").code == 2


def test_ctrl_c_says_what_was_acknowledged(terminal: Terminal, topic: str) -> None:
    writer = terminal.start("produce", topic, stdin=subprocess.PIPE)
    assert writer.stdin is not None
    writer.stdin.write(b"one\ntwo\n")
    writer.stdin.flush()
    assert terminal.do("consume", topic, "-n", "2").out == "one\ntwo\n"
    code, out, err = interrupt(writer)
    assert (code, out, err) == (130, b"", b"interrupted: 2 records acknowledged\n")


def test_records_are_sent_while_the_input_is_still_open(terminal: Terminal, topic: str) -> None:
    writer = terminal.start("produce", topic, stdin=subprocess.PIPE)
    assert writer.stdin is not None
    writer.stdin.write(b"early\n")
    writer.stdin.flush()
    assert terminal.do("consume", topic, "-n", "1").out == "early\n"
    out, _ = writer.communicate(b"late\n", timeout=DEADLINE_S)
    assert out == b"2 records acknowledged\n"
