"""False reports to the judge: some for each of its rules, and each rule must be found broken.

Servers, clients and streams are real, and nothing is done to them. Each report is about a user of its own; it
may break other rules, too. In a plan, whatever follows a fault is reported too late instead.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from loadtest.checker import id_order
from loadtest.stream_events import StreamEvent
from presence.protocol import Code
from tests.system.chaos.judge import ChaosJudge
from tests.system.chaos.truth import DeviceLogin, StreamItem, User, UserBan

MISREPORTS: Final = "misreports"  # on the command line, as a guard
TIMES: Final = 5  # each: what its client does next may excuse one
TIMES_LATE: Final = (
    40  # most of these clients return in time, and then nothing is late: of five one run in six found none
)
KNOWN_S: Final = 3.0  # after its login a client certainly lives, for the judge too
LATE_S: Final = 60.0  # how much later than promised whatever follows a fault of a plan is reported
NO_ENTRY: Final = "0-9"
T = TypeVar("T", bound="Untrue | str")


class Untrue(NamedTuple):
    """The rule that it breaks, and what becomes of an event of that type, and code if one is given."""

    rule: str
    type: str
    told: Callable[[StreamEvent], list[StreamEvent]]
    code: int | None = None
    times: int = TIMES


def _then(event: StreamEvent, **fields: Any) -> StreamEvent:
    """Return a following event of the same session, which differs by some fields."""
    milliseconds, number = id_order(event.id)
    changed = {name: value for name, value in fields.items() if name in StreamEvent._fields}
    return event._replace(
        id=f"{milliseconds}-{number + 1}",
        written_at=event.written_at + 0.001,
        fields={**event.fields, "since_ms": str(event.at_ms), "status_ms": "0", **fields},
        **changed,
    )


def _as(code: Code) -> Callable[[StreamEvent], list[StreamEvent]]:
    return lambda event: [event._replace(code=code)]


OF_EVENTS: Final = (
    Untrue("gap", "online", lambda event: [event, event._replace(type="gap")]),
    Untrue("invented", "online", lambda event: [event._replace(session="nobody's")]),
    Untrue("invented", "online", lambda event: [event._replace(uid="nobody")]),
    Untrue("doubled", "online", lambda event: [event, _then(event)]),
    Untrue("doubled", "offline", lambda event: [event, _then(event)]),
    Untrue("doubled", "offline", lambda event: [event._replace(since_id=NO_ENTRY)]),
    Untrue("risen", "offline", lambda event: [event, _then(event, type="online")]),
    Untrue("disorder", "offline", lambda event: [event._replace(id=NO_ENTRY)]),
    Untrue("shown", "online", lambda event: [event, _then(event, type="away", since_id=NO_ENTRY)]),
    Untrue("shown", "online", lambda event: [event, _then(event, type="update", since_id=event.id)]),
    Untrue("missing", "online", lambda _event: []),
    Untrue("late", "offline", lambda _event: [], times=TIMES_LATE),
    Untrue("unfounded", "offline", _as(Code.NODE_DOWN)),
    Untrue("early", "offline", _as(Code.IDLE_TIMEOUT), Code.LOGOUT),
    Untrue("early", "offline", _as(Code.CLOSED), Code.LOGOUT),
    Untrue("early", "offline", _as(Code.LOGOUT), Code.CLOSED),
    Untrue("early", "offline", _as(Code.REPLACED), Code.LOGOUT),
)
OF_CLIENTS: Final = ("false", "exile", "displaced", "isolation", "admitted")
TOO_LATE: Final = ("node_down", "back only", "caught up only", "equal to the live sessions only")


class Misreporter:
    """Stands before a judge."""

    def __init__(self, judge: ChaosJudge, users: Mapping[str, User]) -> None:
        self._judge, self._users = judge, users
        self._told: dict[Untrue | str, list[str]] = {each: [] for each in (*OF_EVENTS, *OF_CLIENTS)}
        self._victims: set[str] = set()  # users, each with one report

    def alter(self, items: Sequence[StreamItem], now: float) -> list[StreamItem]:
        """Return the entries with false ones in their place; report falsely on some clients, too."""
        return [each for item in items for each in self._altered(item)] + self._of_clients(now)

    def unfound(self) -> list[str]:
        """Return the reports of which none was found to break its rule."""
        rules = [(each if isinstance(each, str) else each.rule, uids) for each, uids in self._told.items()]
        return [
            f"no {rule} of {uids}"
            for rule, uids in rules
            if not any(self._is_found(rule, uid) for uid in uids)
        ]

    def _is_found(self, rule: str, uid: str) -> bool:
        texts = [each.broken.text for each in self._judge.findings if each.broken.rule == rule]
        return any(rule == "gap" or re.search(rf"\b{uid}\b", text) for text in texts)

    def _altered(self, item: StreamItem) -> Sequence[StreamItem]:
        if not isinstance(item, StreamEvent):
            return [item]
        fitting = [each for each in OF_EVENTS if item.type == each.type and each.code in (None, item.code)]
        chosen = self._choose(fitting, item.uid) if fitting else None
        return [item] if chosen is None else chosen.told(item)

    def _choose(self, fitting: Sequence[T], uid: str) -> T | None:
        """Return the rarest false report so far, and note it for the user; None: there are enough."""
        times = {each: TIMES if isinstance(each, str) else each.times for each in fitting}
        wanted = [each for each in fitting if len(self._told[each]) < times[each]]
        if uid in self._victims or not wanted:
            return None
        rarest = min(wanted, key=lambda each: len(self._told[each]))
        self._told[rarest].append(uid)
        self._victims.add(uid)
        return rarest

    def _of_clients(self, now: float) -> list[StreamItem]:
        """Report that connections of some clients ended, or should not have come about."""
        ends: list[StreamItem] = []
        for uid, user in self._users.items():
            login = user.logins[-1] if user.logins else None
            if login is None or login.is_proxied or uid not in self._judge.periods.online:
                continue
            if login.granted_at > now - KNOWN_S or not login.gone_at == login.banned_at == math.inf:
                continue
            rule = self._choose(OF_CLIENTS, uid)
            if rule == "false":
                ends.append(self._end_of(uid, login, now))
            elif rule is not None:
                self._report(rule, user, login, now)
        return ends

    def _end_of(self, uid: str, login: DeviceLogin, now: float) -> StreamEvent:
        since_id = self._judge.periods.online[uid]
        fields = {"type": "offline", "uid": uid, "code": "0", "at_ms": "0", "last_seen_ms": "0"}
        milliseconds, number = id_order(since_id)
        return StreamEvent(
            *(f"{milliseconds}-{number + 1}", "offline", uid, login.session, Code.CLOSED, 0, since_id),
            *(now, now, (now, now)),
            fields=fields,
        )

    def _report(self, rule: str, user: User, login: DeviceLogin, now: float) -> None:
        match rule:
            case "exile":
                self._judge.connection_lost(user.uid, login, now, "kicked", is_for_good=True)
            case "displaced":
                closed = dataclasses.replace(login, code=Code.CLOSED)
                self._judge.connection_lost(user.uid, closed, now, "closed", is_for_good=False)
            case "isolation":
                self._judge.connection_lost(user.uid, login, now, "", is_for_good=False)
            case "admitted":
                user.bans.append(UserBan(login.sent_at - KNOWN_S, math.inf))
                self._judge.login_granted(user.uid, login)
                user.bans.pop()
