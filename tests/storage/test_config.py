"""A topic's settings: Kafka's names, Kafka's defaults, and errors that say what is wrong."""

from __future__ import annotations

from dataclasses import fields

import pytest

from headrace.storage.config import OPTIONS, TopicConfig
from headrace.storage.errors import InvalidConfig


def test_settings_that_are_not_given_have_kafkas_defaults():
    config = TopicConfig.parse({})
    assert config.cleanup_policy == {"delete"}
    assert config.retention_ms == 604_800_000
    assert config.segment_bytes == 1_073_741_824
    assert config.max_message_bytes == 1_048_588
    assert config.overrides == {}


def test_every_default_in_the_table_is_the_default_of_the_typed_setting():
    config = TopicConfig()
    typed = {field.name for field in fields(TopicConfig)} - {"overrides"}
    for option in OPTIONS.values():
        value = option.parse(option.default)
        if option.attribute in typed:
            assert getattr(config, option.attribute) == value
    assert typed <= {option.attribute for option in OPTIONS.values()}


def test_given_settings_are_typed_and_remembered_as_text():
    config = TopicConfig.parse({"cleanup.policy": "compact, delete", "retention.ms": "-1"})
    assert config.is_compacted
    assert config.is_deleted
    assert config.retention_ms == -1
    assert config.overrides == {"cleanup.policy": "compact, delete", "retention.ms": "-1"}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "-2", "between -1"),
        ("retention.ms", "soon", "invalid literal"),
        ("segment.bytes", "1023", "between 1024"),
        ("cleanup.policy", "shrink", "delete, compact, compact,delete, or empty"),
        ("cleanup.policy", "delete,", "delete, compact, compact,delete, or empty"),
        ("min.cleanable.dirty.ratio", "1.5", "between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "between 0 and 1"),
        ("message.timestamp.type", "Whenever", "CreateTime, LogAppendTime"),
        ("preallocate", "yes", "true or false"),
        ("compression.type", "none", "one of uncompressed, zstd"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused_with_the_reason(name, text, reason):
    with pytest.raises(InvalidConfig, match=reason) as refusal:
        TopicConfig.parse({name: text})
    assert name in str(refusal.value)


def test_a_setting_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(InvalidConfig, match=r"unknown topic setting 'retention\.days'.*retention\.ms"):
        TopicConfig.parse({"retention.days": "7"})


def test_every_setting_is_documented():
    assert all(option.doc.endswith(".") for option in OPTIONS.values())
