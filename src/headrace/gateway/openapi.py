"""The OpenAPI document of the gateway, and a page that shows it without assets from other hosts."""

from __future__ import annotations

import html
from typing import Any, Final

from headrace.gateway.ingest import CLOUD_EVENT, CLOUD_EVENTS, ENVELOPE
from headrace.gateway.otlp import ENDPOINTS, JSON, PROTOBUF
from headrace.gateway.views import DEFAULT_LIMIT, MAX_LIMIT

TOPIC_PATTERN: Final = "^[A-Za-z0-9._-]{1,249}$"
ERROR: Final = {"$ref": "#/components/schemas/Error"}
DOCS_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'"

_ERRORS: Final = {
    400: "The request is invalid.",
    401: "The request has no credentials, or the broker refused them.",
    403: "The user may not do this, or the web page may not use the gateway.",
    404: "There is no such topic, partition, view or row.",
    408: "The request did not arrive in time.",
    410: "The log no longer has what follows the token.",
    413: "The body or a record is too large.",
    415: "The content type or encoding is not supported.",
    421: "The gateway does not serve this host.",
    422: "The idempotency key was used with another body, or the view is too large for queries.",
    429: "The topic is full or too many bytes are in flight: repeat the request after `Retry-After`.",
    431: "The request head is too large.",
    502: "The broker cannot be reached.",
    503: "The broker did not confirm in time, or there are too many streams.",
}


def openapi_document(*, authentication: bool = False) -> dict[str, Any]:
    """The document, in OpenAPI 3.1."""
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace gateway",
            "version": "1",
            "description": "Events and OpenTelemetry data in; change feeds, topics and views out.",
        },
        "paths": {
            "/topics/{topic}": {"post": _ingest()},
            "/topics/{topic}/records": {"get": _records()},
            "/changes/{view}": {"get": _changes()},
            "/views": {"get": _get("List the views", {"type": "object", "required": ["views"]})},
            "/views/{view}": {"get": _view_rows()},
            "/views/{view}/{key}": {"get": _view_row()},
            **{path: {"post": _otlp(path)} for path in ENDPOINTS},
            "/health": {"get": _get("Whether the gateway runs", {"type": "object"})},
        },
        "components": {"schemas": _SCHEMAS},
    }
    if authentication:
        document["components"]["securitySchemes"] = {
            "basic": {"type": "http", "scheme": "basic"},
            "bearer": {"type": "http", "scheme": "bearer"},
        }
        document["security"] = [{"basic": []}, {"bearer": []}]
    return document


_SCHEMAS: Final = {
    "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    "Stored": {
        "type": "object",
        "required": ["topic", "offsets"],
        "properties": {
            "topic": {"type": "string"},
            "offsets": {
                "type": "array",
                "items": {
                    "anyOf": [
                        {
                            "type": "object",
                            "required": ["partition", "offset"],
                            "properties": {
                                "partition": {"type": "integer"},
                                "offset": {"type": "integer"},
                            },
                        },
                        {
                            "type": "object",
                            "required": ["status", "error"],
                            "properties": {"status": {"type": "integer"}, "error": {"type": "string"}},
                        },
                    ]
                },
            },
        },
    },
    "Records": {
        "type": "object",
        "required": ["records"],
        "properties": {
            "records": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["value"],
                    "additionalProperties": False,
                    "properties": {
                        "key": {},
                        "value": {},
                        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
                        "partition": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1},
                        "timestamp": {"type": "integer", "minimum": 0, "maximum": (1 << 53) - 1},
                    },
                },
            }
        },
    },
    "CloudEvent": {
        "type": "object",
        "required": ["id", "source", "type", "specversion"],
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "source": {"type": "string", "minLength": 1},
            "type": {"type": "string", "minLength": 1},
            "specversion": {"const": "1.0"},
            "data": {},
        },
    },
}


def _responses(content: dict[str, Any], *statuses: int) -> dict[str, Any]:
    errors = {
        str(status): {
            "description": _ERRORS[status],
            "content": {"application/json": {"schema": ERROR}},
        }
        for status in (400, 401, 403, 404, 408, 421, 431, 502, 503, *statuses)
    }
    return {"200": {"description": "Success.", "content": content}, **errors}


def _get(
    summary: str, schema: dict[str, Any], *parameters: Any, statuses: tuple[int, ...] = ()
) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": _responses({"application/json": {"schema": schema}}, *statuses),
    }


def _path(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1, **schema},
    }


def _query(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": {"type": "string", **schema}}


_TOPIC: Final = _path("topic", "Name of the topic.", pattern=TOPIC_PATTERN)
_VIEW: Final = _path("view", "Name of the view.")
_PARTITION: Final = {
    "name": "partition",
    "in": "query",
    "description": "Number of the partition.",
    "schema": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1},
}


def _ingest() -> dict[str, Any]:
    bodies: dict[str, Any] = {
        "application/json": {"schema": {}},
        "application/x-ndjson": {"schema": {"type": "string"}},
        ENVELOPE: {"schema": {"$ref": "#/components/schemas/Records"}},
        CLOUD_EVENT: {"schema": {"$ref": "#/components/schemas/CloudEvent"}},
        CLOUD_EVENTS: {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/CloudEvent"}}},
        "text/plain": {"schema": {"type": "string"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    stored = {"application/json": {"schema": {"$ref": "#/components/schemas/Stored"}}}
    one_or_all = {"application/json": {"schema": {"anyOf": [ERROR, {"$ref": "#/components/schemas/Stored"}]}}}
    responses = _responses(stored, 413, 415, 422, 429)
    for status in ("400", "403", "404", "413", "429", "503"):
        responses[status]["content"] = one_or_all
    responses["207"] = {"description": "Some records were stored.", "content": stored}
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "The same key gets the same answer, and its records are stored once.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
    }
    return {
        "summary": "Store records",
        "description": "An array, lines and the envelope hold several records. The answer has the partition "
        "and the offset of each record, which is then in the log.",
        "parameters": [_TOPIC, _query("key", "Key of the records."), _PARTITION, key],
        "requestBody": {"required": True, "content": bodies},
        "responses": responses,
    }


def _stream(summary: str, description: str, *parameters: Any) -> dict[str, Any]:
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "Id of the last event that the client has; the stream continues after it.",
        "schema": {"type": "string"},
    }
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "description": f"{description} A WebSocket at the same address gets the same events as JSON.",
        "parameters": [*parameters, last],
        "responses": _responses(content, 410),
    }


def _records() -> dict[str, Any]:
    start = _query("from", "`earliest`, `latest` (the default), an offset, or a time in RFC 3339.")
    return _stream(
        "Follow the records of a topic", "Server-sent events, one per record.", _TOPIC, start, _PARTITION
    )


def _changes() -> dict[str, Any]:
    return _stream(
        "Follow the changes of a view",
        "Server-sent events: the current rows (`row`), then `upsert` and `delete`.",
        _VIEW,
        _query("since", "Token of the last change, instead of `Last-Event-ID`."),
    )


def _view_rows() -> dict[str, Any]:
    limit = {
        "name": "limit",
        "in": "query",
        "description": "Largest number of rows.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    }
    schema = {
        "type": "object",
        "required": ["rows", "complete"],
        "properties": {
            "rows": {"type": "array", "items": {"type": "object"}},
            "complete": {"type": "boolean"},
        },
    }
    found: dict[str, Any] = _get("Find rows of a view", schema, _VIEW, limit, statuses=(422,))
    return {**found, "description": "Each other parameter is a column and the value that rows must have."}


def _view_row() -> dict[str, Any]:
    key = _path("key", "The key: the text of its column, or a JSON object of its columns.")
    return _get("Read a row of a view by its key", {"type": "object"}, _VIEW, key, statuses=(422,))


def _otlp(path: str) -> dict[str, Any]:
    signal = path.rpartition("/")[2]
    answers: dict[str, Any] = {name: {"schema": {}} for name in (JSON, PROTOBUF)}
    responses = _responses(answers, 413, 415, 429)
    for status in ("403", "404", "413", "429", "503"):
        responses[status]["content"] = answers
    return {
        "summary": f"Store OpenTelemetry {signal}",
        "description": f"OTLP over HTTP, into the topic `{ENDPOINTS[path].topic}`.",
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": {"type": "object"}},
                PROTOBUF: {"schema": {"type": "string", "format": "binary"}},
            },
        },
        "responses": responses,
    }


def _page() -> str:
    rows = []
    for path, operations in openapi_document()["paths"].items():
        for method, operation in operations.items():
            parameters = "".join(
                f"<li><code>{html.escape(each['name'])}</code> {html.escape(each['description'])}</li>"
                for each in operation.get("parameters", ())
            )
            bodies = ", ".join(
                f"<code>{html.escape(name)}</code>"
                for name in operation.get("requestBody", {}).get("content", ())
            )
            rows.append(
                f"<section><h2><b>{method.upper()}</b> {html.escape(path)}</h2>"
                f"<p><b>{html.escape(operation['summary'])}.</b> "
                f"{html.escape(operation.get('description', ''))}</p><ul>{parameters}</ul>"
                + (f"<p>Content types: {bodies}</p>" if bodies else "")
                + "</section>"
            )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Headrace gateway</title>'
        '<meta name="viewport" content="width=device-width"><style>'
        "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light dark}h2{font:600 1.05rem ui-monospace,monospace;border-top:1px solid #8884;"
        "padding-top:1rem}code{font-size:.9em}</style><h1>Headrace gateway</h1>"
        '<p>The same as a machine reads it: <a href="/openapi.json">/openapi.json</a>.</p>' + "".join(rows)
    )


DOCS_PAGE: Final = _page()
