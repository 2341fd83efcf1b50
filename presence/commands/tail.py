"""``presence tail``: every transition as it happens, or as it happened."""

import random
import select
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from presence.commands.outcome import FAILED, OK, complain, sigterm_interrupts
from presence.reader import Event, EventReader
from presence.rendering import json_line, printable
from presence.store.client import CONNECTION_LOST, RedisError, open_client, redacted

BLOCK_MS = 1000  # one read; a closed pipe is noticed between two
CALL_TIMEOUT_S = 5.0  # well above BLOCK_MS, or a quiet stream would look like a lost connection
RETRY_MAX_S = 2.0  # between two attempts while Redis is away
_RETRY_FIRST_S = 0.1


class Selection(NamedTuple):
    """What to print, and how."""

    type: str | None
    after: str | None
    as_json: bool


def run(redis_url: str, prefix: str, selection: Selection) -> int:
    """Print events until a signal comes; return the exit status.

    Raises:
        BrokenPipeError: nobody reads standard output any more.
    """
    try:
        with sigterm_interrupts(), open_client(redis_url, call_timeout_s=CALL_TIMEOUT_S) as client:
            reader = EventReader(client, prefix, selection.after)
            _follow(reader, redacted(redis_url), selection)
    except KeyboardInterrupt:
        return OK
    except CONNECTION_LOST as error:
        complain(f"cannot reach Redis at {redacted(redis_url)}: {error}")
    except (RedisError, ValueError) as error:
        complain(f"{redacted(redis_url)}: {error}")
    return FAILED


def _follow(reader: EventReader, url: str, selection: Selection) -> None:
    """Print events for ever.

    Raises:
        BrokenPipeError: nobody reads standard output any more.
        RedisError: one that does not pass with time.
    """
    failures = 0
    while True:
        try:
            events = reader.read(BLOCK_MS)
        except CONNECTION_LOST as error:
            if failures == 0:
                complain(f"lost Redis at {url}, trying again: {error}")
            # Full jitter keeps many readers from coming back at once.
            pause_s = min(RETRY_MAX_S, _RETRY_FIRST_S * 2 ** min(failures, 10))
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            failures += 1
            events = []
        else:
            if failures:
                complain(f"Redis at {url} is back")
            failures = 0
        for event in events:
            if selection.type in {None, event.fields.get("type")}:
                print(_json(event) if selection.as_json else _human(event), flush=True)
        if not events and _nobody_reads():
            raise BrokenPipeError


def _json(event: Event) -> str:
    values: dict[str, object] = {"id": event.id, "shard": event.shard}
    for name, text in event.fields.items():
        is_number = name in {"v", "code", "dropped"} or name.endswith("_ms")
        values[name] = _number(text) if is_number else text
    return json_line(values)


def _number(text: str) -> int | str:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else text


def _human(event: Event) -> str:
    fields = {name: printable(value) for name, value in event.fields.items()}
    kind = fields.get("type", "?")
    if kind == "gap":
        subject = f"{fields.get('dropped', '?')} transitions dropped"
    else:
        device = fields.get("device")
        subject = fields.get("uid", "?") + (f" ({device})" if device else "")
    columns = (
        _time(event),
        f"{kind:<7}",
        f"{fields.get('reason', ''):<12}",
        f"{subject:<32}",
        event.id,
        fields.get("node", ""),
    )
    return "  ".join(columns).rstrip()


def _time(event: Event) -> str:
    at_ms = _number(event.fields.get("at_ms") or event.fields.get("to_ms") or event.id.partition("-")[0])
    with suppress(ValueError, OverflowError, OSError, TypeError):
        moment = datetime.fromtimestamp(int(at_ms) / 1000, UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
    return f"{'?':<23}"


def _nobody_reads() -> bool:
    """Whether standard output is a pipe whose reader has gone."""
    with suppress(OSError, ValueError):  # standard output may be no descriptor at all
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(happened & select.POLLERR for _fd, happened in poll.poll(0))
    return False
