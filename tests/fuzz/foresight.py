"""The required answers to the bytes of one connection: the specification's table and a second decoder."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from presence.core.registry import Guest, Session
from presence.core.requests import REQUEST_KINDS
from presence.core.server_protocol import Outcome
from presence.protocol import (
    FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    FRAME_LIMIT_BYTES,
    TABLE,
    Code,
    ConnectionState,
    Decoder,
    Kind,
    Other,
    Packet,
    Reaction,
    ServerAnswer,
)
from tests.fuzz.oracle import Refused, Taken, judge, length_of

_KINDS: Final = {int(kind): kind for kind in Kind}
_LIMITS: Final = {
    ConnectionState.CONNECTED: FRAME_LIMIT_BEFORE_LOGIN_BYTES,
    ConnectionState.LOGGED_IN: FRAME_LIMIT_BYTES,
}
_REMEMBERED: Final = 20_000  # bodies and answers; most inputs have the same ones


class AnsweredBytes(NamedTuple):
    """The result of comparing the answers to some bytes.

    Attributes:
        signs: how many of the packets were signs of life.
        login: the payload of the first packet, if it was a login.
        answer: the answer to that.
    """

    signs: int
    login: Mapping[str, Any] | None
    answer: Packet | None


def packets(data: bytes | bytearray) -> Sequence[Packet]:
    """Return what a client reads; a server's own mistake raises `ProtocolError` here, and so is a finding."""
    return _packets(bytes(data)) if data else ()


@lru_cache(_REMEMBERED)
def _packets(data: bytes) -> Sequence[Packet]:
    decoder = Decoder()
    decoder.feed(data)
    return [*iter(decoder.next, None)]


_judged: Final = lru_cache(_REMEMBERED)(judge)


def compare(
    data: bytes, was: ConnectionState, outcome: Outcome, packets_counted: int, *, served: bool
) -> AnsweredBytes:
    """Compare an outcome with the table.

    Args:
        data: the earlier incomplete frame, and the bytes that were read.
        was: the connection's state before.
        outcome: the server's result.
        packets_counted: how many valid packets the server counted in it.
        served: whether requests are answered.
    """
    state, at, signs, requests = was, 0, 0, 0
    replies = packets(outcome.reply)
    answers = iter(replies)
    login: Mapping[str, Any] | None = None
    while state is not ConnectionState.CLOSING:
        length = length_of(data, at, _LIMITS[state])
        if not length:
            break
        if isinstance(length, int):
            verdict = _judged(data[at + 4 : at + length])
            at += length
        else:
            verdict = length
        if isinstance(verdict, Taken):
            signs += 1
            if state is ConnectionState.CONNECTED and verdict.kind == Kind.LOGIN:
                login = verdict.payload
        if (
            isinstance(verdict, Taken)
            and verdict.kind in REQUEST_KINDS
            and state is ConnectionState.LOGGED_IN
        ):
            requests += served
            if served:
                continue
        state = _answered(state, verdict, answers)
    last = next(answers, None)
    if state is ConnectionState.LOGGED_IN and outcome.end_code == Code.RATE_LIMITED:
        assert last is not None, "no goodbye was sent"
        assert (last.kind, last.payload["code"]) == (Kind.GOODBYE, Code.RATE_LIMITED)
        assert last.payload["retry_after"] > 0
        state, requests, last = ConnectionState.CLOSING, 0, next(answers, None)
    assert last is None, "an unexpected answer"
    assert packets_counted == signs
    assert len(outcome.requests or ()) == requests
    assert (outcome.end_code is not None) == (state is ConnectionState.CLOSING)
    if state is not ConnectionState.CLOSING:
        assert isinstance(outcome.peer, Session if state is ConnectionState.LOGGED_IN else Guest)
    rest = b"" if state is ConnectionState.CLOSING else data[at:]
    assert (outcome.peer.partial or b"") == rest, (
        "the kept incomplete frame differs from the bytes that arrived"
    )
    return AnsweredBytes(signs, login, replies[0] if replies else None)


def _answered(state: ConnectionState, verdict: Taken | Refused, answers: Iterator[Packet]) -> ConnectionState:
    """Check the answer to one packet and return the state after it."""
    reaction = TABLE[state, _trigger(verdict)]
    if isinstance(verdict, Taken) and verdict.kind in REQUEST_KINDS and state is ConnectionState.LOGGED_IN:
        reaction = TABLE[state, Other.UNKNOWN]  # like an older server, which does not know them
    if reaction.answer is ServerAnswer.NOTHING or (
        reaction.answer is ServerAnswer.OK_IF_ID and verdict.id is None
    ):
        return reaction.then
    answer = next(answers, None)
    assert answer is not None, f"no answer to {verdict}"
    if reaction.answer is ServerAnswer.GOODBYE:
        assert answer.kind == Kind.GOODBYE
        _is_named(answer, reaction, verdict)
        return reaction.then
    assert answer.id == verdict.id, f"the answer to {verdict} has the id {answer.id}"
    is_ok = answer.kind == Kind.OK
    if reaction.answer in (ServerAnswer.OK, ServerAnswer.OK_IF_ID):
        assert is_ok
    elif reaction.answer is ServerAnswer.ERROR:
        assert answer.kind == Kind.ERROR
        _is_named(answer, reaction, verdict)
    else:
        assert is_ok or answer.kind == Kind.ERROR
        if reaction.answer is ServerAnswer.OK_OR_ERROR and not is_ok:
            return ConnectionState.CLOSING
    return reaction.then


def _is_named(answer: Packet, reaction: Reaction, verdict: Taken | Refused) -> None:
    """Check that the answer names the error."""
    code = answer.payload["code"]
    expected = verdict.codes if isinstance(verdict, Refused) and reaction.code is None else {reaction.code}
    assert code in expected, f"{code} is not one of {expected}"
    assert answer.payload["reason"] == Code(code).reason


def _trigger(verdict: Taken | Refused) -> Kind | Other:
    if isinstance(verdict, Taken):
        return _KINDS.get(verdict.kind, Other.UNKNOWN)
    return Other.MALFORMED if verdict.kind is None else Other.INVALID
