"""The description of the HTTP interface for programs: OpenAPI 3.1, at ``/openapi.json``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from presence import __version__
from presence.admin.answering import json_answer
from presence.admin.event_feed import TYPES
from presence.admin.openapi_schemas import SCHEMAS, Schema, list_of, one_of, ref
from presence.admin.requests import UIDS_MAX, USERS_DEFAULT, USERS_MAX

Part = dict[str, Any]

_ERRORS: Final[Mapping[int, str]] = {
    400: "what was asked for cannot be",
    401: "a token is needed, or this one is not known",
    403: "this token may not, or another web page asks",
    404: "there is no such file",
    408: "the body did not come in time",
    413: "too much at once",
    415: "the body is no JSON",
    429: "too many wrong tokens at once",
    503: "Redis, a place, or the file of tokens is not to be had now; `retry_after`: when to ask again",
}
_GUARDED: Final = (401, 403, 429, 503)  # of all that takes a token
_OF_BODIES: Final = (400, 408, 413, 415)


def describe() -> Part:
    """Return the description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "presence, for operators",
            "version": __version__,
            "description": (
                "Who is online, and how the servers are. Times are Unix milliseconds. Without a file of "
                "tokens everything is open to whoever reaches the loopback address; with one all but "
                "/healthz and /readyz takes a token."
            ),
        },
        "security": [{"bearer": []}, {"basic": []}],
        "paths": {path: dict(verbs) for path, verbs in _PATHS.items()},
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "any user; the token is the password",
                },
            },
        },
    }


class Description:
    """Answers with the description."""

    def __init__(self) -> None:
        self._described = describe()

    async def answer(self, _request: Request) -> Response:
        """Answer with it."""
        return json_answer(self._described)


def _verb(
    identity: str,
    summary: str,
    answers: Mapping[int, Part],
    *,
    errors: Sequence[int] = (),
    parameters: Sequence[Part] = (),
    body: Schema | None = None,
    is_open: bool = False,
) -> Part:
    refusals = sorted({*errors, *(() if is_open else _GUARDED), *(() if body is None else _OF_BODIES)})
    told: dict[str, Part] = {str(status): answer for status, answer in answers.items()}
    told |= {str(status): _json(_ERRORS[status], ref("Error")) for status in refusals}
    verb: Part = {"operationId": identity, "summary": summary, "responses": told}
    if is_open:
        verb["security"] = []
    if parameters:
        verb["parameters"] = list(parameters)
    if body is not None:
        verb["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return verb


def _json(description: str, schema: Schema) -> Part:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _text(description: str, *kinds: str) -> Part:
    return {"description": description, "content": {kind: {"schema": {"type": "string"}} for kind in kinds}}


def _query(name: str, description: str, schema: Schema) -> Part:
    return {"name": name, "in": "query", "description": description, "schema": schema}


_UID: Final[Part] = {
    "name": "uid",
    "in": "path",
    "required": True,
    "description": "percent-encoded",
    "schema": {"type": "string", "minLength": 1, "maxLength": 128},
}
_UNCHANGED: Final[Part] = {"description": "as it was, by its ETag"}
_FILE: Final[Part] = {"name": "file", "in": "path", "required": True, "schema": {"type": "string"}}
_LAST_EVENT_ID: Final[Part] = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "the id of the last event seen: browsers send it when they come back",
    "schema": {"type": "string"},
}
_EVENT_STREAM: Final = "text/event-stream"
_UIDS: Final[Schema] = {
    "type": "object",
    "properties": {"uids": {**list_of({"type": "string"}), "maxItems": UIDS_MAX}},
    "required": ["uids"],
    "additionalProperties": False,
}

_PATHS: Final[Mapping[str, Mapping[str, Part]]] = {
    "/healthz": {
        "get": _verb(
            "healthz",
            "whether the workers live: each has answered within 10 s",
            {200: _json("they do", ref("Health")), 503: _json("one does not", ref("Health"))},
            is_open=True,
        )
    },
    "/readyz": {
        "get": _verb(
            "readyz",
            "whether this server can serve clients: all of its workers can, if need be without Redis",
            {200: _json("they can", ref("Readiness")), 503: _json("some cannot", ref("Readiness"))},
            is_open=True,
        )
    },
    "/metrics": {
        "get": _verb(
            "metrics",
            "all figures, for Prometheus",
            {200: _text("metrics", "text/plain", "application/openmetrics-text")},
        )
    },
    "/v1/presence/{uid}": {
        "get": _verb(
            "presence",
            "the state of a user",
            {200: _json("as `presence status --json`; of a stranger: offline", ref("State"))},
            errors=(400, 503),
            parameters=[_UID],
        )
    },
    "/v1/presence/query": {
        "post": _verb(
            "query",
            f"the states of up to {UIDS_MAX} users",
            {200: _json("uid to state", ref("States"))},
            errors=(503,),
            body=_UIDS,
        )
    },
    "/v1/online": {
        "get": _verb(
            "online",
            "how many users are online, and a page of them",
            {200: _json("in no order; who comes or goes meanwhile may be in it or not", ref("Online"))},
            errors=(400, 503),
            parameters=[
                _query(
                    "limit",
                    "users a page, roughly; a small shard comes whole. 0: the count only",
                    {"type": "integer", "minimum": 0, "maximum": USERS_MAX, "default": USERS_DEFAULT},
                ),
                _query("cursor", "of the page before", {"type": "string"}),
            ],
        )
    },
    "/v1/nodes": {
        "get": _verb(
            "nodes",
            "the servers that share the Redis",
            {200: _json("by id, as `presence nodes --json`", ref("Nodes"))},
            errors=(503,),
        )
    },
    "/v1/events": {
        "get": _verb(
            "events",
            "every event from now on, or after one; each message has an id to come back with, its type as "
            "the event, and JSON (#/components/schemas/Event)",
            {200: _text("server-sent events, without end", _EVENT_STREAM)},
            errors=(400, 503),
            parameters=[
                _query("from", "an entry id after which to begin; 0: all that is kept", {"type": "string"}),
                _query("type", "of these types only, and gaps; may be repeated", list_of(one_of(*TYPES))),
                _LAST_EVENT_ID,
            ],
        )
    },
    "/v1/live": {
        "get": _verb(
            "live",
            "what the live page shows; its messages may change with any version",
            {200: _text("server-sent events, without end", _EVENT_STREAM)},
            errors=(503,),
        )
    },
    "/v1/explain/{uid}": {
        "get": _verb(
            "explain",
            "why a user is shown as he is",
            {200: _json("what is known of him", ref("Explanation"))},
            errors=(400, 503),
            parameters=[_UID],
        )
    },
    "/v1/kick": {
        "post": _verb(
            "kick",
            "end the sessions of a user; the clients do not come back by themselves. This is no ban: the "
            "user may log in again immediately",
            {
                200: _json("they are gone", ref("Kicked")),
                202: _json("some are left: see `left`", ref("Kicked")),
            },
            errors=(503,),
            body=ref("Kick"),
        )
    },
    "/openapi.json": {
        "get": _verb("openapi", "this description", {200: _json("OpenAPI 3.1", {"type": "object"})})
    },
    "/": {"get": _verb("page", "the live page", {200: _text("HTML", "text/html"), 304: _UNCHANGED})},
    "/static/{file}": {
        "get": _verb(
            "static",
            "files of the live page",
            {
                200: _text("a file", "text/javascript", "text/css", "image/svg+xml", "text/plain"),
                304: _UNCHANGED,
            },
            errors=(404,),
            parameters=[_FILE],
        )
    },
}
