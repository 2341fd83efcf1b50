"""Nodes that are no more than a channel and an answer: for questions of operators, messages of backends."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import msgpack

from presence import protocol
from presence.common.errors import StoreUnavailable
from presence.messaging.message_bus import Confirmed, Delivery, DeliveryReport
from presence.store.answers import AnswerField, AnswerKeys, report_field
from presence.store.control_channel import ControlChannel
from presence.store.keys import Keys
from presence.store.questions import Question

NOW_MS = 1_700_000_030_000


def session(node: str, name: str, device: str = "", **other: Any) -> dict[str, Any]:
    """Return a session as its node reports it."""
    return {
        "device": device,
        "session": name,
        "node": node,
        "link": "connected",
        "address": "192.0.2.7",
        "transport": "tls",
        "login_ms": NOW_MS - 30_000,
        "last_packet_ms": NOW_MS - 2_500,
        "last_packet_age_s": 2.5,
        "idle_timeout_s": 30.0,
        "deadline_ms": NOW_MS + 27_500,
        "slot": 115,
        "slot_s": 0.5,
        "slots_from_hand": 56,
        "due_ms": NOW_MS + 27_500,
        "due_in_s": 27.5,
        "ends_as": {"code": 201, "reason": "idle_timeout"},
        "status": "online",
        "away_in_s": None,
        "token_expires_in_s": None,
        "unsent_bytes": 0,
        "watches": 0,
        "watched_rooms": 0,
        "behind_on_rooms": False,
        "rooms": [],
        "roster": None,
        "roster_claimed": 0,
        "vouched": True,
        **other,
    }


def ended(name: str, device: str = "", **other: Any) -> dict[str, Any]:
    """Return what a node remembers of a session that ended by idle time-out."""
    return {
        "device": device,
        "session": name,
        "code": 201,
        "reason": "idle_timeout",
        "at_ms": NOW_MS + 300,
        "last_packet_ms": NOW_MS - 30_000,
        "idle_timeout_s": 30.0,
        "deadline_ms": NOW_MS,
        **other,
    }


def answer(
    node: str,
    *sessions: Mapping[str, Any],
    waiting: int = 0,
    more: int = 0,
    ends: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a node's report on a user."""
    figures = {"node": node, "at_ms": NOW_MS, "outbox": waiting, "more": more}
    return {**figures, "sessions": [*sessions], "ended": [*ends]}


@contextmanager
def listening(
    url: str, node: str, reply: object = None, *, shards: int = 1, packed: bytes | None = None
) -> Iterator[list[Question]]:
    """Let a node listen and send the given answer, or none; yields the questions that it receives.

    Args:
        told: the answer to everything; None: no answer.
        packed: the bytes of the answer, in place of `told`.
    """
    keys, received = Keys(shards=shards), list[Question]()
    channel = ControlChannel(url, keys)
    channel.subscribe(node)

    def run() -> None:
        with closing(AnswerKeys(url, keys)) as answers:
            while True:
                try:
                    questions = [each for each in channel.next() if isinstance(each, Question)]
                except StoreUnavailable:
                    return
                received.extend(questions)
                for each in questions:
                    if reply is not None or packed is not None:
                        value = packed or msgpack.packb(reply)
                        answers.write([AnswerField(each.uid, each.token, node, value)])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield received
    finally:
        channel.close()
        thread.join()


ReportOf = Callable[[Delivery], tuple[int, float] | tuple[int, float, Confirmed] | None]
"""Gives the sessions that got a delivery, seconds of grace, and which confirmed; None: there is no report."""


class ListeningNode:
    """A node that receives messages, and reports as told; it does not report on what it is told nothing of.

    Attributes:
        received: the bodies, in order.
    """

    def __init__(self, url: str, node: str, report: ReportOf, *, shards: int = 1) -> None:
        self.received: list[Any] = []
        self._url, self._node, self._report = url, node, report
        self._keys = Keys(shards=shards)
        self._channel = ControlChannel(url, self._keys)
        self._channel.subscribe(node)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with closing(AnswerKeys(self._url, self._keys)) as channel:
            while True:
                try:
                    received = [each for each in self._channel.next() if isinstance(each, Delivery)]
                except StoreUnavailable:
                    return
                for each in received:
                    self.received.append(protocol.decode(each.frame[4:]).payload["body"])
                    assert each.reply_to is not None
                    if (told := self._report(each)) is not None:
                        report = DeliveryReport(each.uid, each.reply_to, len(each.devices), *told)
                        channel.write([report_field(report, self._node)])

    def __enter__(self) -> "ListeningNode":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._thread.join()


def all_of(delivery: Delivery) -> tuple[int, float]:
    return len(delivery.devices), 0.0
