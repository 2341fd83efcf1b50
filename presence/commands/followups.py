"""``presence followups``: what is to be done for users who stay away, and doing it."""

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from presence.commands.complaints import subscriber_complains
from presence.commands.outcome import FAILED, OK, USAGE, complain, sigterm_interrupts
from presence.commands.reaching import reaching
from presence.followups import FollowUp, FollowUps, Pending, due_sync
from presence.followups.turning import Outage, Turner
from presence.rendering import json_line, printable
from presence.rules import Rule
from presence.timers.handlers import HandlerError, load
from presence.timers.interface import TimerError

STOP_WAIT_S = 3.0  # for a call that is under way; a closed connection ends it


@dataclass(frozen=True, slots=True)
class Running:
    """How `run` is set up.

    Attributes:
        rules: see `Turner`.
        kept: see `Turner`.
        handler: ``module:function``, called with each `FollowUp` that is due; None to turn only.
        group: whose handlers share the work.
        attempts: after so many a follow-up whose handler failed is a dead letter.
        retry_s: after so many seconds it is handled again; a handler must be quicker, or others begin it too.
    """

    rules: tuple[Rule, ...] | None
    kept: int
    handler: str | None = None
    group: str = "followups"
    attempts: int = 5
    retry_s: float = 60.0


def run(redis_url: str, prefix: str, running: Running) -> int:
    """Turn, and handle what is due, until a signal comes; return the exit status."""
    handle: Callable[[Any], Any] | None = None
    if running.handler:
        try:
            handler = load(running.handler)
        except HandlerError as error:
            complain(error)
            return USAGE
        if handler.is_async:
            complain(f"handler {running.handler} must be a plain function")
            return USAGE
        handle = handler.function

    def work() -> int:
        turner = Turner(redis_url, prefix, running.rules, kept=running.kept)
        turner.turn()
        if turner.failure is not None:  # at first: the URL or the password is wrong
            turner.close()
            raise turner.failure
        complain("followups: turning")
        with contextlib.closing(turner):
            if handle is None:
                _turn(turner, threading.Event())
            else:
                with _turning(turner):
                    _handle(redis_url, prefix, running, handle)
        return OK

    try:
        with sigterm_interrupts():
            return reaching(redis_url, work)
    except KeyboardInterrupt:
        return OK


def _turn(turner: Turner, stop: threading.Event) -> None:
    outage = Outage()
    while not stop.wait(turner.turn()):
        if news := outage.news(turner.failure):
            complain(news)


@contextlib.contextmanager
def _turning(turner: Turner) -> Iterator[None]:
    """Turn in a thread for the length of a ``with`` block."""
    stop = threading.Event()
    thread = threading.Thread(target=_turn, args=(turner, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_WAIT_S)


def _handle(redis_url: str, prefix: str, running: Running, handle: Callable[[Any], Any]) -> None:
    """Call the handler with what is due, for ever."""
    with (
        subscriber_complains(),
        due_sync(
            redis_url,
            group=running.group,
            consumer=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            prefix=prefix,
            max_deliveries=running.attempts,
            claim_idle_s=running.retry_s,
            prefetch=1,  # what waits behind a handler that is slow is others' to do
        ) as followups,
    ):
        for followup in followups:
            if not isinstance(followup, FollowUp):
                complain(f"follow-ups are missing in shard {followup.shard}: {followup.reason}")
                continue
            try:
                handle(followup)
            except Exception as error:  # whatever it is, others go on
                complain(f"handler failed with {followup.id}: {type(error).__name__}: {error}")
                followups.fail(error)


def add(redis_url: str, prefix: str, uid: str, *, after: float, name: str, payload: str) -> int:
    """Add a follow-up of one user and print its id; return the exit status."""

    def ask(followups: FollowUps) -> int:
        added = followups.add(uid, after=after, name=name, payload=payload)
        print(f"{printable(added.id)}  {_when(added.due_ms)}")
        return OK

    return _asking(redis_url, prefix, ask)


def cancel(redis_url: str, prefix: str, ids: list[str], uids: list[str]) -> int:
    """Take out follow-ups by id, and all of users; return the exit status: 1 if an id is not there."""

    def ask(followups: FollowUps) -> int:
        missing = [each for each in ids if not followups.cancel(each)]
        cancelled = len(ids) - len(missing) + sum(followups.cancel_of(uid) for uid in uids)
        print(f"cancelled: {cancelled}")
        for each in missing:
            complain(f"no follow-up {each} waits")
        return FAILED if missing else OK

    return _asking(redis_url, prefix, ask)


def nothing_named() -> int:
    """Complain that nothing to cancel was named; return the exit status."""
    complain("followups cancel: name at least one ID, or --uid UID")
    return USAGE


def show(redis_url: str, prefix: str, uid: str | None, *, limit: int, as_json: bool) -> int:
    """Print follow-ups that wait, those due first before others; return the exit status."""

    def ask(followups: FollowUps) -> int:
        for pending in followups.earliest(limit) if uid is None else followups.of(uid):
            print(json_line(asdict(pending)) if as_json else _line(pending))
        return OK

    return _asking(redis_url, prefix, ask)


def _asking(redis_url: str, prefix: str, ask: Callable[[FollowUps], int]) -> int:
    def with_followups() -> int:
        with FollowUps(redis_url, prefix=prefix) as followups:
            try:
                return ask(followups)
            except TimerError as error:
                complain(error)
                return USAGE

    return reaching(redis_url, with_followups)


def _line(pending: Pending) -> str:
    columns = (_when(pending.due_ms), f"{pending.name:<20}", f"{printable(pending.uid):<32}")
    return "  ".join((*columns, printable(pending.id)))


def _when(due_ms: int | None) -> str:
    if due_ms is None:
        return f"{'when he goes offline':<23}"
    moment = datetime.fromtimestamp(due_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
