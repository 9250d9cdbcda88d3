"""Decodes the bodies of `POST /topics/{topic}` to records.

| content type | records |
|---|---|
| `application/json` | one record; of an array, one for each element |
| `application/x-ndjson`, `application/jsonl` | one for each line |
| `application/vnd.kafka.json.v2+json` | `{"records": [{"key": …, "value": …, "headers": …}, …]}` |
| `application/cloudevents+json`, `application/cloudevents-batch+json`, headers `ce-…` | CloudEvents |
| `text/plain`, `application/octet-stream` | one record with the body as it is |

JSON is checked, and stored as it was sent: numbers keep their digits. Each record has the time of arrival as
its timestamp, unless the client sends one, and in any case as the header `received`.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from headrace.gateway.errors import HttpError
from headrace.gateway.producer import ANY_PARTITION, OutgoingRecord, RejectedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.gateway.producer import RecordHeaders

RECEIVED: Final = "received"
"""The header with the time of arrival."""
MAX_RECORDS: Final = 10_000
MAX_PARTITION: Final = (1 << 31) - 1
MAX_TIMESTAMP_MS: Final = (1 << 53) - 1
ENVELOPE: Final = "application/vnd.kafka.json.v2+json"
CLOUD_EVENT: Final = "application/cloudevents+json"
CLOUD_EVENTS: Final = "application/cloudevents-batch+json"
CE_PREFIX: Final = b"ce-"
CE_REQUIRED: Final = ("id", "source", "type")
CE_VERSION: Final = "1.0"
PARTITION_KEY: Final = "partitionkey"
"""The CloudEvents extension that is the key of the record."""


class InvalidRecord(ValueError):
    """A record that cannot be stored as it is."""


class Arrival(NamedTuple):
    """The time at which a request arrived."""

    timestamp_ms: int
    header: tuple[str, str | bytes | None]

    @classmethod
    def at(cls, time_s: float) -> Arrival:
        """The arrival at a time in seconds since 1970."""
        moment = datetime.fromtimestamp(time_s, UTC)
        text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return cls(int(time_s * 1000), (RECEIVED, text.encode()))


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_reject_constant)
DecodedRecord = OutgoingRecord | RejectedRecord


class IngestRequest(NamedTuple):
    """What the decoders need of a request."""

    media_type: str
    headers: Mapping[bytes, bytes]
    query: bytes
    body: bytes
    arrival: Arrival


def decode_records(request: IngestRequest) -> list[DecodedRecord]:
    """The records of a request, in their order; invalid ones as rejections."""
    if b"ce-specversion" in request.headers:
        return [_checked(_binary_cloud_event, request, None)]
    decode = _DECODERS.get(request.media_type)
    if decode is None:
        known = ", ".join(name for name in _DECODERS if name)
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the content type {request.media_type!r} is not supported: use one of {known}",
        )
    records = decode(request)
    if not records:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the request has no records")
    if len(records) > MAX_RECORDS:
        raise HttpError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have at most {MAX_RECORDS} records"
        )
    return records


def media_type_of(content_type: bytes) -> str:
    """The media type without parameters, in lower case."""
    return content_type.partition(b";")[0].strip().lower().decode("latin-1")


def decompress(body: bytes, encoding: bytes, limit: int) -> bytes:
    """The body without its content encoding; raises an error beyond `limit` bytes."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise HttpError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the content encoding {encoding!r} is not supported: use gzip"
        )
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if encoding == b"gzip" else 0))
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not {encoding.decode()}: {fault}") from None
    if len(plain) > limit:
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit} bytes")
    if not inflater.eof:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the compressed body is incomplete")
    return plain


def parse_json(text: str) -> Any:
    """The JSON document; raises `ValueError` for anything else, also for NaN and too deep nesting."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _text_of(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the body is not UTF-8") from None


def _document(request: IngestRequest) -> Any:
    try:
        return parse_json(_text_of(request.body))
    except ValueError as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {fault}") from None


def _checked(
    decode: Callable[[IngestRequest, Any], OutgoingRecord], request: IngestRequest, document: Any
) -> DecodedRecord:
    try:
        return decode(request, document)
    except (ValueError, TypeError) as fault:
        return RejectedRecord(HTTPStatus.BAD_REQUEST, str(fault))


# ---------------------------------------------------------------------------------------------------- values


def _of_value(request: IngestRequest, value: bytes) -> OutgoingRecord:
    """A record with this value; key and partition are those of the query string."""
    timestamp_ms, received = request.arrival
    if not request.query:
        return OutgoingRecord(value, None, ANY_PARTITION, timestamp_ms, [received])
    key, partition = read_query(request.query)
    return OutgoingRecord(value, key, partition, timestamp_ms, [received])


def read_query(query: bytes) -> tuple[bytes | None, int]:
    """The key and the partition in a query string."""
    try:
        fields = dict(
            parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict")
        )
        partition = _partition(int(fields["partition"])) if "partition" in fields else ANY_PARTITION
    except (ValueError, InvalidRecord):
        raise HttpError(
            HTTPStatus.BAD_REQUEST, "the query string is invalid: use ?key=TEXT and ?partition=NUMBER"
        ) from None
    key = fields.get("key")
    return None if key is None else key.encode(), partition


def _json(request: IngestRequest) -> list[DecodedRecord]:
    text = _text_of(request.body)
    if text.lstrip().startswith("["):
        return [_of_value(request, element.encode()) for element in _elements(text)]
    try:
        parse_json(text)
    except ValueError as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {fault}") from None
    return [_of_value(request, request.body)]


def _elements(text: str) -> Iterator[str]:
    """The elements of a JSON array as they were written."""
    position = text.index("[") + 1
    try:
        position = _after_space(text, position)
        if text[position] == "]":
            _check_end(text, position + 1)
            return
        while True:
            start = _after_space(text, position)
            _, end = _DECODER.raw_decode(text, start)
            yield text[start:end]
            position = _after_space(text, end)
            if text[position] == "]":
                _check_end(text, position + 1)
                return
            if text[position] != ",":
                raise ValueError(f"a comma is missing at character {position}")
            position += 1
    except (ValueError, IndexError, RecursionError) as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not a JSON array: {fault}") from None


def _after_space(text: str, position: int) -> int:
    while text[position] in " \t\r\n":
        position += 1
    return position


def _check_end(text: str, position: int) -> None:
    if text[position:].strip(" \t\r\n"):
        raise ValueError("something follows the array")


def _lines(request: IngestRequest) -> list[DecodedRecord]:
    records: list[DecodedRecord] = []
    for number, line in enumerate(request.body.split(b"\n"), 1):
        content = line.strip(b" \t\r")
        if not content:
            continue
        try:
            parse_json(content.decode())
        except ValueError as fault:
            records.append(RejectedRecord(HTTPStatus.BAD_REQUEST, f"line {number} is not JSON: {fault}"))
        else:
            records.append(_of_value(request, content))
    return records


def _raw(request: IngestRequest) -> list[DecodedRecord]:
    return [_of_value(request, request.body)]


# -------------------------------------------------------------------------------------------------- envelope


def _envelope(request: IngestRequest) -> list[DecodedRecord]:
    document = _document(request)
    records = document.get("records") if isinstance(document, dict) else None
    if not isinstance(records, list):
        raise HttpError(HTTPStatus.BAD_REQUEST, 'the body is not {"records": [{"value": …}, …]}')
    return [_checked(_enveloped, request, record) for record in records]


def _enveloped(request: IngestRequest, record: Any) -> OutgoingRecord:
    if not isinstance(record, dict) or "value" not in record:
        raise InvalidRecord('a record is an object with a "value"')
    unknown = record.keys() - {"key", "value", "headers", "partition", "timestamp"}
    if unknown:
        raise InvalidRecord(f"a record has no field {min(unknown)!r}")
    timestamp_ms, received = request.arrival
    timestamp = record.get("timestamp")
    if timestamp is not None:
        if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP_MS:
            raise InvalidRecord("a timestamp is a number of milliseconds since 1970")
        timestamp_ms = timestamp
    partition = record.get("partition")
    key, value = record.get("key"), record["value"]
    return OutgoingRecord(
        None if value is None else _encoded(value),
        None if key is None else key.encode() if isinstance(key, str) else _encoded(key),
        ANY_PARTITION if partition is None else _partition(partition),
        timestamp_ms,
        [*_record_headers(record.get("headers") or {}), received],
    )


def _encoded(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:
        raise InvalidRecord("a text has half of a surrogate pair") from None


def _partition(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MAX_PARTITION:
        raise InvalidRecord("a partition is a number from 0")
    return number


def _record_headers(headers: Any) -> RecordHeaders:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise InvalidRecord("headers are an object whose values are texts")
    return [(name, value.encode()) for name, value in headers.items()]


# ----------------------------------------------------------------------------------------------- CloudEvents


def _cloud_event(request: IngestRequest) -> list[DecodedRecord]:
    return [_checked(_structured_cloud_event, request, _document(request))]


def _cloud_events(request: IngestRequest) -> list[DecodedRecord]:
    events = _document(request)
    if not isinstance(events, list):
        raise HttpError(HTTPStatus.BAD_REQUEST, "the body is not an array of CloudEvents")
    return [_checked(_structured_cloud_event, request, event) for event in events]


def _binary_cloud_event(request: IngestRequest, _: Any) -> OutgoingRecord:
    """An event with its attributes in HTTP headers, percent-encoded."""
    attributes = {
        name[len(CE_PREFIX) :].decode("latin-1"): unquote_to_bytes(value).decode()
        for name, value in request.headers.items()
        if name.startswith(CE_PREFIX)
    }
    content_type = request.headers.get(b"content-type", b"").decode("latin-1")
    if content_type:
        attributes["datacontenttype"] = content_type
    if request.media_type == "application/json" and request.body:
        parse_json(request.body.decode())
    return _of_event(request, attributes, request.body or None)


def _structured_cloud_event(request: IngestRequest, event: Any) -> OutgoingRecord:
    if not isinstance(event, dict):
        raise InvalidRecord("a CloudEvent is a JSON object")
    attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64")}
    for name, attribute in attributes.items():
        if not isinstance(attribute, str | int | bool) or not name.isalnum() or not name.isascii():
            raise InvalidRecord(f"the CloudEvents attribute {name!r} is invalid")
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in attributes.items()}
    value: bytes | None
    if "data_base64" in event:
        if "data" in event or not isinstance(event["data_base64"], str):
            raise InvalidRecord("a CloudEvent has either data or data_base64, which is text")
        value = b64decode(event["data_base64"], validate=True)
    elif "data" not in event:
        value = None
    else:
        value = _event_data(event["data"], texts.setdefault("datacontenttype", "application/json"))
    return _of_event(request, texts, value)


def _event_data(data: Any, content_type: str) -> bytes:
    media_type = content_type.partition(";")[0].strip().lower()
    is_json = media_type.endswith("json")
    return data.encode() if isinstance(data, str) and not is_json else _encoded(data)


def _of_event(request: IngestRequest, attributes: dict[str, str], value: bytes | None) -> OutgoingRecord:
    """The record of an event in the binary content mode of the CloudEvents binding for Kafka."""
    if attributes.get("specversion") != CE_VERSION:
        raise InvalidRecord(f"the specversion of a CloudEvent must be {CE_VERSION!r}")
    for name in CE_REQUIRED:
        if not attributes.get(name):
            raise InvalidRecord(f"the CloudEvent has no {name}")
    timestamp_ms, received = request.arrival
    content_type = attributes.pop("datacontenttype", None)
    headers: RecordHeaders = [(f"ce_{name}", text.encode()) for name, text in attributes.items()]
    if content_type is not None:
        headers.append(("content-type", content_type.encode()))
    key = attributes.get(PARTITION_KEY)
    partition = ANY_PARTITION
    if request.query:
        query_key, partition = read_query(request.query)
        key_bytes = query_key if key is None else key.encode()
    else:
        key_bytes = None if key is None else key.encode()
    return OutgoingRecord(value, key_bytes, partition, timestamp_ms, [*headers, received])


_DECODERS: Final[Mapping[str, Callable[[IngestRequest], list[DecodedRecord]]]] = {
    "": _json,
    "application/json": _json,
    "application/x-ndjson": _lines,
    "application/jsonl": _lines,
    ENVELOPE: _envelope,
    CLOUD_EVENT: _cloud_event,
    CLOUD_EVENTS: _cloud_events,
    "text/plain": _raw,
    "application/octet-stream": _raw,
}
