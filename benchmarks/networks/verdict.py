"""Compares offline events with what became of the phones: pure. Moments are monotonic seconds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.networks.phone import PhoneRecord
from loadtest.outcome import percentile
from presence.core.engine import KEEPALIVE_SHARE

NOTICE_SLACK_S = 30.0  # tick, packets still on their way through a bad network, and a machine under load
RETURN_S = 5.0  # time that a client may need after a blackout; another one within it continues the first


class TimeoutSetting(NamedTuple):
    """The server's time-outs, seconds."""

    idle_timeout: float
    grace: float

    @property
    def keepalive(self) -> float:
        """The interval between two keepalives."""
        return KEEPALIVE_SHARE * self.idle_timeout

    @property
    def noticed_s(self) -> float:
        """How long after its death the offline event of a phone must be in Redis."""
        return self.idle_timeout + NOTICE_SLACK_S

    @property
    def bridged_s(self) -> float:
        """A blackout shorter than this may pass unnoticed."""
        return self.idle_timeout - self.keepalive


class OfflineMoment(NamedTuple):
    """An offline event, and when it was written."""

    uid: str
    at: float


@dataclass
class NetworkOutcome:
    """What happened on one network with one setting.

    Attributes:
        hours: that phones were alive, together.
        missed: offline events of phones that were alive, after a blackout that the setting cannot bridge.
        false: such events otherwise.
        delays_s: from the death of a phone to its offline event.
        unnoticed: phones that died without an offline event within `noticed_s`.
        online: phones that came online at least once.
        returns: logins after the first.
    """

    phones: int = 0
    online: int = 0
    hours: float = 0.0
    missed: int = 0
    false: int = 0
    delays_s: list[float] = field(default_factory=list)
    unnoticed: int = 0
    returns: int = 0

    def cells(self, setting: TimeoutSetting) -> list[str]:
        """Return a row of the table."""
        per_100_hours = 100 / max(self.hours, 1e-9)
        return [
            f"{setting.idle_timeout:g} / {setting.grace:g} / {setting.keepalive:g}",
            f"{self.hours:.1f}",
            f"{self.false * per_100_hours:.1f} ({self.false})",
            f"{self.missed * per_100_hours:.1f} ({self.missed})",
            f"{percentile(self.delays_s, 0.5):.0f}, {percentile(self.delays_s, 0.99):.0f} s",
            f"{self.returns * per_100_hours / 100:.1f}",
        ]


def judge(
    records: Iterable[PhoneRecord],
    events: Iterable[OfflineMoment],
    setting: TimeoutSetting,
    read_at: float = math.inf,
) -> dict[str, NetworkOutcome]:
    """Return the outcome by the name of the network; events in order, as they were at `read_at`."""
    by_uid: dict[str, list[float]] = {}
    for event in events:
        by_uid.setdefault(event.uid, []).append(event.at)
    outcomes: dict[str, NetworkOutcome] = {}
    for record in records:
        outcome = outcomes.setdefault(record.network, NetworkOutcome())
        outcome.phones += 1
        outcome.hours += (record.ended_at - record.born_at) / 3600
        outcome.online += record.logins > 0
        outcome.returns += max(0, record.logins - 1)
        after = [at for at in by_uid.get(record.uid, []) if at >= record.ended_at]
        for at in by_uid.get(record.uid, []):
            if at < record.ended_at:
                is_long = _was_cut_off(record.blackouts, at, setting)
                outcome.missed += is_long
                outcome.false += not is_long
        if record.is_dead and after:
            outcome.delays_s.append(after[0] - record.ended_at)
            outcome.unnoticed += after[0] - record.ended_at > setting.noticed_s
        elif record.is_dead and record.logins and record.uid not in by_uid:  # else it may have been offline
            outcome.unnoticed += record.ended_at + setting.noticed_s < read_at
    return outcomes


def failures(outcomes: Mapping[str, NetworkOutcome], expected: Iterable[str]) -> list[str]:
    """Return why figures are not valid: phones that vanished from the record, or whose end has no event."""
    found = [f"{name}: no phone was ever alive" for name in expected if name not in outcomes]
    for name, outcome in outcomes.items():
        if outcome.unnoticed:
            found.append(f"{name}: {outcome.unnoticed} dead phones have no offline event in time")
        if not outcome.hours:
            found.append(f"{name}: no phone was ever alive")
        elif not outcome.online:
            found.append(f"{name}: no phone ever came online")
    return found


def _was_cut_off(
    blackouts: Sequence[tuple[float, float]], offline_at: float, setting: TimeoutSetting
) -> bool:
    """Whether a blackout before that moment was too long to be bridged."""
    joined: list[tuple[float, float]] = []
    for begin, end in blackouts:
        if joined and begin - joined[-1][1] < RETURN_S:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    since = offline_at - setting.idle_timeout
    return any(
        end > since and begin < offline_at and end - begin >= setting.bridged_s for begin, end in joined
    )
