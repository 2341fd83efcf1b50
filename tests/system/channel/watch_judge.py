"""What watchers saw, held against the streams: pure, so that made-up histories show what it would notice.

Per uid the ids that a watcher sees rise strictly, over all of its connections; only the answer to a watch may
repeat one. Each state equals the entry of its id. Between two states that a watcher sees on one connection
there is no entry (`hole`): what is written after the answer is pushed, everything, in order. The answer to a
watch is how things stood when it was asked, or later. In the end each watcher's view equals the streams.

An answer names no entry for a user who is offline: it stands for any moment at which the user was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.checker import id_order
from loadtest.outcome import BrokenPromises
from tests.system.channel.entries import OFFLINE, ChannelEntry, EntryId, State, differences

NO_ENTRY = -1  # the place of a user without an entry


class AnsweredWatch(NamedTuple):
    """A watch was answered; times are Unix ms."""

    asked_ms: float
    at_ms: float
    uids: Sequence[str]
    states: Mapping[str, State]


class Pushed(NamedTuple):
    """A user's state was pushed; `state` also holds the packet's `uid` and `reason`."""

    at_ms: float
    uid: str
    state: State


class Unwatched(NamedTuple):
    """An unwatch was answered."""

    uids: Sequence[str]


class Lost(NamedTuple):
    """The connection has ended, and all watches with it."""


History = Sequence[AnsweredWatch | Pushed | Unwatched | Lost]


@dataclass
class WatchVerdict(BrokenPromises):
    """What watchers received."""

    pushes: int = 0  # that were right
    answers: int = 0  # states in answers that were right
    # from the decision to the push, with the entry's time
    decided_ms: list[tuple[int, float]] = field(default_factory=list)
    # for how long each state in an answer was outdated when it was requested
    stale_ms: list[float] = field(default_factory=list)


class TrueStates:
    """The streams: each user's entries, in order."""

    def __init__(self, entries: Mapping[str, Sequence[ChannelEntry]]) -> None:
        self._entries = entries
        self._indexes = {
            uid: {entry.id: place for place, entry in enumerate(of_user)} for uid, of_user in entries.items()
        }

    def entries_of(self, uid: str) -> Sequence[ChannelEntry]:
        return self._entries.get(uid, ())

    def index_of(self, uid: str, id: EntryId) -> int | None:
        """Return the index of the entry with that id among the user's entries, or None."""
        return self._indexes.get(uid, {}).get(id)

    def was_offline(self, uid: str, place: int) -> bool:
        """Whether a user was offline after the entry with that index, or had none."""
        return place == NO_ENTRY or self._entries[uid][place].is_offline


class _WatcherView:
    """What one watcher has seen so far."""

    def __init__(self, name: str, truth: TrueStates, verdict: WatchVerdict) -> None:
        self._name = name
        self._truth = truth
        self._verdict = verdict
        self._last: dict[str, EntryId] = {}  # the highest that was seen, on all connections
        self._watched: dict[str, int | None] = {}  # the place of what is known; None: offline at some moment

    def answered(self, answer: AnsweredWatch) -> None:
        for uid in answer.uids:
            state = answer.states.get(uid)
            if state is None:
                self._note("answer leaves out a user who was asked for", uid)
                continue
            if state.get("id") is None:
                self._check_offline_answer(uid, state, answer)
            elif (place := self._find_entry(uid, state)) is not None:
                entry = self._truth.entries_of(uid)[place]
                if entry.id < self._last.get(uid, entry.id):
                    self._note("answer older than what was seen before", (uid, state, self._last[uid]))
                self._record_seen(uid, place)
                self._record_staleness(uid, place, answer)
        for uid in {*answer.states} - {*answer.uids}:
            self._note("answer names a user who was not asked for", uid)

    def pushed(self, push: Pushed) -> None:
        uid, state = push.uid, push.state
        if uid not in self._watched:
            self._note("push of a user who is not watched", (uid, state))
            return
        if state.get("id") is None:
            self._note("push without an id", (uid, state))
            return
        place = self._find_entry(uid, state)
        if place is None:
            return
        entry = self._truth.entries_of(uid)[place]
        if state.get("reason") != entry.fields["reason"]:
            self._note("push gives another reason than the entry", (uid, state, entry))
        if uid in self._last and entry.id <= self._last[uid]:
            self._note("ids do not rise", (uid, state, self._last[uid]))
            return
        if not self._is_next(uid, place):
            self._note("hole: an entry before a push was not pushed", (uid, state, self._watched[uid]))
        self._record_seen(uid, place)
        self._verdict.pushes += 1
        self._verdict.decided_ms.append((entry.id[0], push.at_ms - entry.at_ms))

    def unwatched(self, uids: Sequence[str]) -> None:
        for uid in uids:
            self._watched.pop(uid, None)

    def lost(self) -> None:
        self._watched.clear()

    def check_final_view(self) -> None:
        """Compare the view with the user's last entry."""
        for uid, known in self._watched.items():
            entries = self._truth.entries_of(uid)
            last = len(entries) - 1
            if known != last and not (known is None and self._truth.was_offline(uid, last)):
                wanted = entries[-1].state if entries else "never there"
                seen = entries[known].state if known is not None and known >= 0 else OFFLINE
                self._note("final view differs from the truth", (uid, seen, wanted))

    def _find_entry(self, uid: str, state: State) -> int | None:
        """Return the index of a state's entry, and check that the two agree."""
        try:
            place = self._truth.index_of(uid, id_order(state["id"]))
        except ValueError:
            place = None
        if place is None:
            self._note("state of an entry that is in no stream", (uid, state))
            return None
        entry = self._truth.entries_of(uid)[place]
        if differing := differences(state, entry.state):
            self._note(f"state differs from its entry: {', '.join(differing)}", (uid, state, entry.state))
        return place

    def _is_next(self, uid: str, place: int) -> bool:
        known = self._watched[uid]
        if known is None:  # he was offline at some moment: right before this entry, or a push is missing
            return self._truth.was_offline(uid, place - 1)
        return place == known + 1

    def _check_offline_answer(self, uid: str, state: State, answer: AnsweredWatch) -> None:
        """Check an answer that says that a user is offline without naming an entry."""
        if state.get("status") != OFFLINE:
            self._note("a state without an id that is not offline", (uid, state))
            return
        low = self._truth.index_of(uid, self._last[uid]) if uid in self._last else NO_ENTRY
        assert low is not None
        entries = self._truth.entries_of(uid)
        places = [
            place
            for place in range(low, len(entries))
            if self._truth.was_offline(uid, place)
            and (place == NO_ENTRY or entries[place].id[0] <= answer.at_ms + 1)
        ]
        if not places:
            self._note("offline, and the user was not", (uid, state, entries[low].state))
            return
        seen_ms = {None if place == NO_ENTRY else entries[place].state["last_seen_ms"] for place in places}
        if state.get("last_seen_ms") not in seen_ms:
            self._note("last seen at another time than the entry says", (uid, state))
        self._watched[uid] = None
        if places[0] != NO_ENTRY:
            self._last[uid] = entries[places[0]].id
        self._record_staleness(uid, places[-1], answer)

    def _record_seen(self, uid: str, place: int) -> None:
        self._watched[uid] = place
        entry = self._truth.entries_of(uid)[place]
        self._last[uid] = max(entry.id, self._last.get(uid, entry.id))

    def _record_staleness(self, uid: str, place: int, answer: AnsweredWatch) -> None:
        """Record for how long an answer was outdated when it was requested."""
        self._verdict.answers += 1
        entries = self._truth.entries_of(uid)
        over_ms = entries[place + 1].id[0] if place + 1 < len(entries) else answer.asked_ms
        self._verdict.stale_ms.append(max(0.0, answer.asked_ms - over_ms))

    def _note(self, what: str, example: object) -> None:
        self._verdict.note(what, (self._name, example))


def judge(histories: Mapping[str, History], truth: TrueStates) -> WatchVerdict:
    """Compare what each watcher saw, in order, with the streams after the run."""
    verdict = WatchVerdict()
    for name, history in histories.items():
        eyes = _WatcherView(name, truth, verdict)
        for happening in history:
            match happening:
                case AnsweredWatch():
                    eyes.answered(happening)
                case Pushed():
                    eyes.pushed(happening)
                case Unwatched(uids):
                    eyes.unwatched(uids)
                case Lost():
                    eyes.lost()
        eyes.check_final_view()
    return verdict
