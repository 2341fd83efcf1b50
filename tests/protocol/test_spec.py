"""The numbers that every client relies on; and SPEC.md agrees with the tables."""

import re
from importlib.resources import files

import pytest

from presence.protocol import (
    TABLE,
    VERSION,
    Code,
    ConnectionState,
    Decoder,
    Kind,
    Other,
    Reaction,
    ServerAnswer,
    error,
    goodbye,
)
from presence.protocol import constants as limits
from presence.protocol.schema import SCHEMA

SPEC = (files("presence.protocol") / "SPEC.md").read_text("utf-8")
# From the contract with clients; `r` marks codes after which a client may return.
CODES = """
1 login · 2 returned · 3 away · 4 back · 5 updated · 6 watched · 7 removed · 8 rooms ·
100 logout · 101 background · 200 closed r ·
201 idle_timeout r · 202 slow_consumer r ·
300 replaced · 301 kicked · 302 auth_expired r · 303 auth_failed · 304 session_limit · 305 banned ·
310 protocol_error ·
311 rate_limited r · 312 login_timeout r · 313 unsupported · 314 recipient_offline · 315 too_large ·
316 not_logged_in · 317 recipient_disconnected r · 318 not_allowed · 400 server_drain r ·
401 server_restart r · 402 node_down r · 403 server_error r · 404 busy r
"""
KINDS = """
1 login · 2 message · 3 keepalive · 4 logout · 5 query · 6 watch · 7 unwatch · 8 update ·
64 ok · 65 error · 66 presence · 67 deliver · 68 goodbye · 69 changes · 70 rooms
"""


def _section(heading: str) -> str:
    """Return the text under a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", SPEC, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def _rows(text: str) -> list[list[str]]:
    """Return the cells of the table in a text, without its heading."""
    table = text.partition("\n| ---")[2].splitlines()[1:]
    return [line.strip("| ").split(" | ") for line in table if line.startswith("|")]


def _cell(state: ConnectionState, reaction: Reaction) -> str:
    answer = reaction.answer.value
    if reaction.answer in (ServerAnswer.ERROR, ServerAnswer.GOODBYE):
        answer += f" {reaction.code:d}" if reaction.code else " 310 or 315"
    parts = [answer]
    if reaction.then is not state:
        parts.append(f"→ {reaction.then.value}")
    if reaction.activity:
        parts.append("activity")
    if reaction.offline:
        parts.append("offline immediately")
    return "; ".join(parts)


def _trigger(trigger: Kind | Other) -> str:
    return f"{trigger.value} {trigger.name.lower()}" if isinstance(trigger, Kind) else trigger.value


def test_kinds_codes_and_version_are_those_of_the_contract() -> None:
    contract = re.findall(r"(\d+) (\w+)( r\b)?", CODES)
    assert {(str(code.value), code.reason, " r" if code.reconnect else "") for code in Code} == {*contract}
    assert {(str(kind.value), kind.name.lower()) for kind in Kind} == {*re.findall(r"(\d+) (\w+)", KINDS)}
    assert VERSION == 1


def test_errors_and_goodbyes_name_their_code() -> None:
    payload = {"code": 404, "reason": "busy", "message": "full", "retry_after": 2.5}
    assert error(7, Code.BUSY, "full", 2.5) == (65, 7, payload)
    assert goodbye(Code.KICKED).payload == {"code": 301, "reason": "kicked", "reconnect": False}


def test_table_has_every_cell() -> None:
    assert set(TABLE) == {(state, trigger) for state in ConnectionState for trigger in (*Kind, *Other)}


def test_printed_state_table_equals_the_data() -> None:
    expected = [
        [_trigger(trigger), *(_cell(state, TABLE[state, trigger]) for state in ConnectionState)]
        for trigger in (*Kind, *Other)
    ]
    assert _rows(_section("States of a connection")) == expected


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name)
def test_printed_payload_table_equals_the_schema(kind: Kind) -> None:
    expected = [
        [
            f"`{name}`",
            field.type,
            f"unless `{field.unless}`" if field.unless else "yes" if field.required else "no",
        ]
        for name, field in SCHEMA[kind].items()
    ]
    assert [row[:3] for row in _rows(_section(f"{kind.value} {kind.name.lower()}"))] == expected


def test_printed_code_table_equals_the_data() -> None:
    expected = [[str(code.value), f"`{code.reason}`", "yes" if code.reconnect else "no"] for code in Code]
    assert [row[:3] for row in _rows(_section("Reason codes"))] == expected


def test_printed_frame_limits_equal_the_constants() -> None:
    printed = [int(row[1].removesuffix(" bytes").replace(",", "")) for row in _rows(_section("Frames"))]
    assert printed == [
        limits.FRAME_LIMIT_BEFORE_LOGIN_BYTES,
        limits.FRAME_LIMIT_BYTES,
        limits.SERVER_FRAME_LIMIT_BYTES,
    ]


def test_printed_type_limits_equal_the_constants() -> None:
    rules = {row[0]: row[1] for row in _rows(_section("Types"))}
    printed = {
        name: int(re.findall(r"\d+", rules[name].split(" bytes")[0].split(" uids")[0].split(" [")[0])[-1])
        for name in (
            "uid",
            "device",
            "class",
            "token",
            "meta",
            "list of uids",
            "map of uids to states",
            "list of rows",
        )
    }
    assert printed == {
        "uid": limits.UID_MAX_BYTES,
        "device": limits.DEVICE_MAX_BYTES,
        "class": limits.CLASS_MAX_BYTES,
        "token": limits.TOKEN_MAX_BYTES,
        "meta": limits.META_MAX_BYTES,
        "list of uids": limits.UIDS_MAX,
        "map of uids to states": limits.UIDS_MAX,
        "list of rows": limits.UIDS_MAX,
    }
    assert f"at most {limits.META_TEXT_MAX_BYTES} bytes as JSON text" in rules["meta"]
    assert f"at most {limits.DEPTH_MAX} deep" in _section("Types")


def test_printed_examples_decode() -> None:
    decoder = Decoder()
    lines = re.findall(r"^ {12}((?:[0-9a-f]{2} ?)+)$", _section("Examples"), re.MULTILINE)
    decoder.feed(bytes.fromhex("".join(lines)))
    kinds = []
    while (packet := decoder.next()) is not None:
        kinds.append(packet.kind)
    assert kinds == [1, 64, 3, 3, 64, 9, 65, 4, 64]
