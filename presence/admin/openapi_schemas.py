"""The shapes of answers, for the description of the HTTP interface (OpenAPI 3.1: JSON Schema)."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from presence.samples import Readiness

Schema: TypeAlias = Mapping[str, Any]

INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
TEXT: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
ANY_OBJECT: Final[Schema] = {"type": "object"}


def ref(name: str) -> Schema:
    """Return what stands for a schema of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def one_of(*values: str) -> Schema:
    """Return the schema of some words."""
    return {"type": "string", "enum": list(values)}


def or_null(schema: Schema) -> Schema:
    """Return the schema of something that may not be known."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"oneOf": [schema, {"type": "null"}]}


def list_of(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def map_of(schema: Schema) -> Schema:
    """Return the schema of an object whose names are data."""
    return {"type": "object", "additionalProperties": schema}


def closed(properties: Mapping[str, Schema], *optional: str) -> Schema:
    """Return the schema of an object with these names and no others; all are there but the optional ones."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": closed(
        {
            "error": closed(
                {
                    "code": {**TEXT, "description": "for programs"},
                    "message": {**TEXT, "description": "for people"},
                    "retry_after": {**INTEGER, "description": "seconds, as the header of that name"},
                },
                "retry_after",
            )
        }
    ),
    "Health": closed(
        {"status": one_of("ok", "failing"), "workers": map_of(closed({"silent_s": NUMBER}))},
    ),
    "Readiness": closed(
        {
            "status": {
                **one_of("ready", "degraded", "not_ready"),
                "description": "degraded: clients are served, and a worker does not reach Redis",
            },
            "workers": {
                **map_of(one_of(*(each.value for each in Readiness), "no_answer")),
                "description": "all of them, by number",
            },
        }
    ),
    "Session": closed(
        {
            "device": {**TEXT, "description": "empty: the default one"},
            "session": TEXT,
            "node": TEXT,
            "login_ms": INTEGER,
            "away": BOOLEAN,
            "meta": ANY_OBJECT,
        },
        "away",
        "meta",
    ),
    "State": closed(
        {
            "status": {
                **one_of("online", "away", "offline", "unknown"),
                "description": "unknown: all his nodes are silent, and nobody has swept them yet",
            },
            "since_ms": {**or_null(INTEGER), "description": "since when, Unix milliseconds"},
            "last_seen_ms": {**or_null(INTEGER), "description": "of who is offline, if known"},
            "id": {**or_null(TEXT), "description": "the entry id of the event that led to it"},
            "sessions": list_of(ref("Session")),
            "meta": ANY_OBJECT,
        },
        "meta",
    ),
    "States": closed({"presence": map_of(ref("State"))}),
    "Online": closed(
        {
            "count": COUNT,
            "users": map_of(ref("State")),
            "cursor": {**or_null(TEXT), "description": "for the next page; null after the last one"},
        }
    ),
    "Node": {
        "type": "object",
        "description": "what it told of itself when it renewed its lease last; null where it told nothing",
        "required": ["node", "status", "lease_left_s"],
        "properties": {
            "node": TEXT,
            "status": one_of("alive", "left", "silent", "dead"),
            "lease_left_s": {**or_null(NUMBER), "description": "below 0: seconds since it has ended"},
            "sweeper": or_null(TEXT),
            "readiness": or_null(TEXT),
            "address": or_null(TEXT),
            "host": or_null(TEXT),
            "pid": or_null(INTEGER),
            "version": or_null(TEXT),
            "started_ms": or_null(INTEGER),
            "left_ms": or_null(INTEGER),
            "sessions": or_null(COUNT),
            "connections": or_null(COUNT),
            "outbox": or_null(COUNT),
        },
    },
    "Nodes": map_of(ref("Node")),
    "Event": {
        "type": "object",
        "description": "an entry of the stream, as `presence tail --json` prints it",
        "required": ["id", "shard", "type"],
        "properties": {
            "id": TEXT,
            "shard": COUNT,
            "type": {**TEXT, "examples": ["online", "offline", "away", "update", "gap"]},
            "uid": TEXT,
            "device": TEXT,
            "session": TEXT,
            "node": TEXT,
            "code": INTEGER,
            "reason": TEXT,
            "at_ms": INTEGER,
            "since_ms": INTEGER,
            "last_seen_ms": INTEGER,
            "since_id": TEXT,
            "dropped": INTEGER,
        },
    },
    "Kick": closed(
        {
            "uid": {"type": "string", "minLength": 1, "maxLength": 128},
            "device": {
                **or_null(TEXT),
                "description": "sessions of this device only; empty: the default one; absent or null: all",
            },
            "wait_s": {
                "type": "number",
                "minimum": 0,
                "maximum": 30,
                "default": 5,
                "description": "for how long to wait until they are gone",
            },
        },
        "device",
        "wait_s",
    ),
    "Kicked": closed(
        {
            "uid": TEXT,
            "sessions": {**COUNT, "description": "that were told to end; none of a user who was offline"},
            "left": list_of(
                closed(
                    {
                        "device": TEXT,
                        "session": TEXT,
                        "node": TEXT,
                        "reason": {
                            **one_of("no_answer", "node_silent"),
                            "description": "its node was told and has not done it yet, or others will",
                        },
                    }
                )
            ),
        }
    ),
    "Explanation": {
        "type": "object",
        "required": ["uid", "at_ms", "redis", "state", "event", "why", "notes", "sessions", "ended", "nodes"],
        "properties": {
            "uid": TEXT,
            "at_ms": INTEGER,
            "redis": {**or_null(TEXT), "description": "why Redis could not be asked"},
            "state": or_null(ref("State")),
            "event": {**or_null(ref("Event")), "description": "that led to what is shown"},
            "event_missing": {**or_null(TEXT), "description": "why there is none"},
            "online_event": or_null(ref("Event")),
            "why": {**TEXT, "description": "in a sentence"},
            "notes": {**list_of(TEXT), "description": "what does not fit together"},
            "sessions": list_of(ANY_OBJECT),
            "ended": {**list_of(ANY_OBJECT), "description": "sessions that live no more, as nodes remember"},
            "nodes": list_of(ANY_OBJECT),
        },
    },
}
