"""Sends messages of an application's backend to users, through Redis only::

    from presence.sender import PresenceSender

    with PresenceSender("redis://localhost:6379", "@shop") as sender:
        outcome = sender.send("ann", {"order": 7, "state": "shipped"})
        print(outcome.status, outcome.delivered)
        outcome = sender.send("ann", "your taxi is here", confirm=5)
        if not outcome.confirmed:
            print("on none of her devices: send a push notification")

Its calls block. In an async program, make them in threads; several may run in parallel::

    outcome = await anyio.to_thread.run_sync(sender.send, "ann", body)

A message takes the path that a message of a client takes between servers, and is delivered to each session at
most once. The nodes report to how many sessions they delivered it, and with `confirm` how many of these
certainly have it.

Tests: `tests/messaging/test_sender.py`.
"""

import secrets
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Self

from presence import protocol
from presence.common.errors import StoreError, StoreInterrupted, StoreUnavailable
from presence.messaging.message_bus import (
    NUMBER_BITS,
    REPORT_TIME_S,
    Confirm,
    OutgoingMessage,
    ReplyAddress,
    RouteResult,
)
from presence.messaging.message_queue import RETRY_DELAY_S
from presence.protocol import FRAME_LIMIT_BYTES, EncodeError, Kind
from presence.protocol.schema import device_complaint, uid_complaint
from presence.reader import PresenceReader
from presence.store.answers import MAX_POLL_INTERVAL_S, MIN_POLL_INTERVAL_S, ReadReport, read_reports
from presence.store.error_classes import calling
from presence.store.keys import Keys
from presence.store.redis_client import RedisError
from presence.store.redis_store import Deliveries
from presence.store.script_arguments import Shape
from presence.store.shard_clients import ShardClients

WAIT_S: Final = 1.0  # for nodes, which usually report within milliseconds
MAX_MESSAGES: Final = 100  # of one call
MAX_CONFIRM_POLL_S: Final = 0.2  # between two looks for confirmations, which may take long

Status = Literal["delivered", "offline", "disconnected", "busy", "unknown"]


class Message(NamedTuple):
    """A message to a user."""

    to: str  # the uid
    body: Any  # of MessagePack's own types; the packet of a client with it must fit into a client's frame
    device: str | None = None  # this device only, "" for the default one; None: all
    confirm: float | None = None  # seconds to wait for confirmations, at most 30; None: for none


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message.

    Its status is ``delivered``, to one session or more; ``offline``: to none, there is no session;
    ``disconnected``: to none, the recipient has lost the connection and may return within `retry_after`
    seconds; ``busy``: to none, the recipient's node or Redis cannot be reached at present; or ``unknown``: a
    node did not report in time, or the connection to Redis broke. Only an unknown message may have been
    delivered, or may be yet, and to send it again may deliver it twice.

    `confirmed`, `by_app` and `unconfirmed` are None, unless a message with `confirm` was delivered. A session
    whose client confirms messages, as all of this project do, is confirmed once the app has received it. Any
    other is once the kernel at the other end of the connection has acknowledged it: that of the device, or of
    a TCP proxy in between.
    """

    status: Status
    delivered: int = 0  # sessions to whose connections it was handed
    unreported: int = 0  # sessions whose nodes did not report, in addition
    retry_after: float | None = None  # seconds
    confirmed: int | None = None  # of the delivered, sessions that certainly have it
    by_app: int | None = None  # of these, those whose app has said so
    unconfirmed: int | None = None  # the rest of the delivered


_OFFLINE: Final = Outcome("offline")
_BUSY: Final = Outcome("busy")
_UNKNOWN: Final = Outcome("unknown")
_FINAL: Final = frozenset({"delivered", "unknown"})  # these must not be sent again, the others may be


class PresenceSender:
    """Sends messages to the users of presence servers, through their Redis.

    Every call may be made from any thread. While Redis answers, each takes `wait_s` at most, usually a few
    milliseconds. A message that reached no session is sent again after a quarter of a second, because a login
    reaches Redis a moment after its answer; a call with such messages may take the same time again. With
    `confirm` a call takes up to that time more, until all sessions have confirmed.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+cluster://`` or ``redis+sentinel://``, as
            `presence.common.redis_url` takes it; nothing is sent yet.
        name: whom the recipients see as the sender: a uid as which no user can log in.
        prefix: prefix of the servers' keys.
        wait_s: how long to wait for the reports of nodes.

    Raises:
        ValueError: the URL or the name is invalid.
    """

    def __init__(self, url: str, name: str, *, prefix: str = "presence", wait_s: float = WAIT_S) -> None:
        check_name(name)
        self._url = url
        self._name = name
        self._wait_s = wait_s
        self._reader = PresenceReader(url, prefix=prefix)
        self._clients = ShardClients(url)
        self._lock = threading.Lock()
        self._idle: list[tuple[Keys, Deliveries]] = []  # connections that no call uses
        self._closed = threading.Event()

    def send(self, to: str, body: Any, *, device: str | None = None, confirm: float | None = None) -> Outcome:
        """Send one message; see `Message` and `send_all`."""
        return self.send_all([Message(to, body, device, confirm)])[0]

    def send_all(self, messages: Iterable[Message], *, name: str | None = None) -> list[Outcome]:
        """Send messages, at most `MAX_MESSAGES`, and return their outcomes in order.

        Those of one call to one recipient arrive in order, except that one whose recipient was not found at
        first may arrive after later ones. Calls have no order between them. `name` replaces the sender's.

        Raises:
            ValueError: a message or the name is invalid; none was sent.
            StoreUnavailable, StoreError: Redis does not answer, or refuses; no message was sent, and all may
                be sent again.
        """
        sender = self._name if name is None else name
        check_name(sender)
        wanted = list(messages)
        if len(wanted) > MAX_MESSAGES:
            raise ValueError(f"at most {MAX_MESSAGES} messages in a call, not {len(wanted)}")
        at_ms = time.time_ns() // 1_000_000
        outgoing = [_outgoing(message, sender, at_ms) for message in wanted]
        if not outgoing:
            return []
        with calling():
            keys = self._reader.keys()
        outcomes = self._send(keys, outgoing)
        if again := [place for place, outcome in enumerate(outcomes) if outcome.status not in _FINAL]:
            with suppress(RedisError, StoreUnavailable):  # closed meanwhile: what is known stays
                self._clients.pause(RETRY_DELAY_S)
                repeated = self._send(keys, [outgoing[place] for place in again], is_retry=True)
                for place, outcome in zip(again, repeated, strict=True):
                    outcomes[place] = outcome
        return outcomes

    def close(self) -> None:
        """Close the connections; calls in other threads fail, or have unknown outcomes."""
        with self._lock:
            self._closed.set()
            idle, self._idle = self._idle, []
        for _, deliveries in idle:
            deliveries.shut_down()
        self._clients.close()
        self._reader.close()

    def _send(
        self, keys: Keys, messages: Sequence[OutgoingMessage], *, is_retry: bool = False
    ) -> list[Outcome]:
        """Send each message once, and return what became of it."""
        token = secrets.token_hex(16)
        outgoing = [
            message._replace(reply_to=ReplyAddress(token, number)) for number, message in enumerate(messages)
        ]
        with self._deliveries(keys) as deliveries:
            answers = deliveries.deliver("", outgoing, {})
        not_sent = [
            each
            for each in answers
            if not isinstance(each, RouteResult) and not isinstance(each, StoreInterrupted)
        ]
        if len(not_sent) == len(answers) and not is_retry:
            raise not_sent[0]
        routes = {number: each for number, each in enumerate(answers) if isinstance(each, RouteResult)}
        reports = self._reports(keys, token, outgoing, routes)
        return [
            _outcome(answer, reports[number].values(), is_confirmed=messages[number].confirm is not None)
            for number, answer in enumerate(answers)
        ]

    def _reports(
        self, keys: Keys, token: str, messages: Sequence[OutgoingMessage], routes: dict[int, RouteResult]
    ) -> dict[int, dict[str, ReadReport]]:
        """Return the reports on messages by number and node, when all are there or after the wait."""
        reports: dict[int, dict[str, ReadReport]] = {number: {} for number in range(len(messages))}
        begun, pause_s = time.monotonic(), MIN_POLL_INTERVAL_S
        while True:
            waits = {
                number: _reports_within_s(route, reports[number].values(), messages[number], self._wait_s)
                for number, route in routes.items()
            }
            now = time.monotonic()
            open_ = {number: begun + wait_s - now for number, wait_s in waits.items() if begun + wait_s > now}
            if not open_:
                return reports
            try:
                self._clients.pause(min(pause_s, *open_.values()))
                awaits_delivery = any(waits[number] <= self._wait_s for number in open_)
                pause_s = min(2 * pause_s, MAX_POLL_INTERVAL_S if awaits_delivery else MAX_CONFIRM_POLL_S)
                found = self._read(keys, token, {keys.shard(messages[number].to) for number in open_})
                for number in found.keys() & reports.keys():
                    reports[number] |= found[number]  # an earlier one may have expired
            except RedisError:  # the messages were sent: this must not look as if they had not been
                if self._closed.is_set():
                    return reports

    def _read(self, keys: Keys, token: str, shards: Collection[int]) -> dict[int, dict[str, ReadReport]]:
        return self._clients.read(lambda clients: read_reports(clients, keys, token, shards))

    @contextmanager
    def _deliveries(self, keys: Keys) -> Iterator[Deliveries]:
        """Lend a connection for one call at a time."""
        with self._lock:
            if self._closed.is_set():
                raise StoreUnavailable("closed")
            found, deliveries = self._idle.pop() if self._idle else (None, None)
        if deliveries is None or found != keys:
            if deliveries is not None:
                deliveries.shut_down()
            # Nothing is trimmed by these calls.
            deliveries = Deliveries(self._url, Shape(keys, maxlen=0, seen_retention_ms=0))
        try:
            yield deliveries
        finally:
            with self._lock:
                if not self._closed.is_set():
                    self._idle.append((keys, deliveries))
            if self._closed.is_set():
                deliveries.shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_name(name: object) -> None:
    """Raise `ValueError` if a name of a sender is no uid."""
    if complaint := uid_complaint(name):
        raise ValueError(f"the sender's name {complaint}")


def check_message(message: Message) -> int:
    """Return the size of a message as clients send it, bytes; raise `ValueError` if it is invalid."""
    if message.device not in (None, "") and (complaint := device_complaint(message.device)):
        raise ValueError(f"device {complaint}")
    packet = protocol.message(message.to, message.body, confirm=message.confirm)
    try:
        return len(protocol.encode(packet, FRAME_LIMIT_BYTES))
    except EncodeError as error:
        raise ValueError(str(error).replace(f"kind {int(Kind.MESSAGE)}", "message", 1)) from None


def _outgoing(message: Message, sender: str, at_ms: int) -> OutgoingMessage:
    """Return a message as it is sent, without the address for reports."""
    check_message(message)
    confirm = None
    if message.confirm is not None:
        confirm = Confirm(message.confirm, secrets.randbits(NUMBER_BITS))
    number = None if confirm is None else confirm.number
    frame = protocol.encode(protocol.deliver(sender, message.body, at_ms, number))
    return OutgoingMessage(message.to, frame, device=message.device, confirm=confirm)


def _devices(reports: Iterable[ReadReport]) -> int:
    return sum(each.devices for each in reports)


def _reports_within_s(
    route: RouteResult, reports: Collection[ReadReport], message: OutgoingMessage, wait_s: float
) -> float:
    """Return how long to wait for reports on a message since it was sent; 0 if none is missing."""
    if message.confirm is not None and any(each.delivered and each.confirmed is None for each in reports):
        return wait_s + message.confirm.within_s + REPORT_TIME_S
    return wait_s if _devices(reports) < route.handed else 0.0


def _outcome(
    answer: RouteResult | StoreUnavailable | StoreError,
    reports: Collection[ReadReport],
    *,
    is_confirmed: bool,
) -> Outcome:
    """Return the outcome of a message from where it was sent, and the reports on it."""
    if isinstance(answer, StoreInterrupted):
        return _UNKNOWN
    if not isinstance(answer, RouteResult):
        return _BUSY
    delivered = sum(each.delivered for each in reports)
    unreported = max(0, answer.handed - _devices(reports))
    grace_s = max((each.grace_s for each in reports), default=0.0)
    if delivered:
        outcome = Outcome("delivered", delivered, unreported)
        return _with_confirmations(outcome, reports) if is_confirmed else outcome
    if unreported:
        return Outcome("unknown", 0, unreported)
    if grace_s:
        return Outcome("disconnected", retry_after=grace_s)
    return _BUSY if len(answer.elsewhere) > answer.handed else _OFFLINE


def _with_confirmations(outcome: Outcome, reports: Iterable[ReadReport]) -> Outcome:
    found = [each.confirmed for each in reports if each.confirmed is not None]
    sessions, by_app = sum(each.sessions for each in found), sum(each.by_app for each in found)
    return replace(outcome, confirmed=sessions, by_app=by_app, unconfirmed=outcome.delivered - sessions)
