"""The order of messages to one recipient, which the client keeps although it may send one of them again.

The server refuses a message to a user who has lost the connection and may return (317), and the client sends
it again. It must not arrive after a later one that has found the user back. So there is a line for each
recipient with messages in flight:

- The first message goes alone, and the later ones wait for its answer: they are *held*. Any answer but that
  refusal releases them, all together. For `STEADY_S` after a delivery no message goes alone. Nor does one
  that is not to be sent again: the answer to a confirmed message may take half a minute.
- A refused message waits for its next try, and with it all later ones. It is tried again, alone, when no
  message of the line is in flight any more; its delivery releases all others.
- A refused message is *overtaken* if a later one, which was in flight with it, is delivered, or may be:
  without an answer the server may still have it to read. It is not sent again: it has failed, and the program
  knows.

So the messages that arrive do so in the order of the calls, and a burst to one user costs one round trip
more. O(log n) for a message, where n is the number of those in flight to its recipient.

Tests: `tests/client/test_message_lines.py`, `tests/client/test_client_model.py`.
"""

from bisect import insort
from collections import OrderedDict

from presence.client.errors import PresenceError

STEADY_S = 1.0  # after a delivery; who loses the connection and returns sooner makes a message fail at worst


class _Line:
    """Messages to one recipient, by their ids, which rise in the order of the calls."""

    def __init__(self) -> None:
        self.in_flight: set[int] = set()
        self.alone: int | None = None  # of those in flight, the one whose answer the others wait for
        self.refused: list[int] = []  # to be sent again, in order
        self.held: OrderedDict[int, bool] = OrderedDict()  # not sent yet, later than all others; may go alone
        self.paused: set[int] = set()  # those of the refused whose pause before the next try is not over
        self.last_arrived = 0  # the last one that the recipient has, or may have
        self.refusal: PresenceError | None = None  # why those that wait do so, if the server has said it

    def first_again(self) -> list[int]:
        """Return the first refused message to send it again, if its time has come."""
        if self.in_flight or not self.refused or self.refused[0] in self.paused:
            return []
        id = self.alone = self.refused.pop(0)
        self.in_flight.add(id)
        return [id]

    def first_held(self) -> list[int]:
        """Return the first messages that were not sent yet, up to one that goes alone."""
        found: list[int] = []
        while self.held and self.alone is None:
            id, goes_alone = self.held.popitem(last=False)
            found.append(id)
            if goes_alone:
                self.alone = id
        self.in_flight.update(found)
        return found

    def all_held(self) -> list[int]:
        """Return all messages that were not sent yet, to send them now."""
        found = list(self.held)
        self.held.clear()
        self.in_flight.update(found)
        return found


class MessageLines:
    """The lines of all recipients. Methods return the ids of messages to be sent now, in order."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._delivered_at: OrderedDict[str, float] = OrderedDict()  # by recipient, the oldest first

    def join(self, to: str, id: int, now: float, *, retries: bool) -> bool:
        """Add a message; return whether it is to be sent now.

        `retries`: whether it is to be sent again when it is refused because the recipient may return.
        """
        line = self._lines.setdefault(to, _Line())
        if line.alone is not None or line.refused or line.held:
            line.held[id] = retries
            return False
        line.in_flight.add(id)
        if retries and now >= self._delivered_at.get(to, -STEADY_S) + STEADY_S:
            line.alone = id
        return True

    def delivered(self, to: str, id: int, now: float) -> tuple[list[int], list[int]]:
        """Note a delivery; return the messages to be sent now, and those that it has overtaken."""
        self._note_delivery(to, now)
        line = self._lines[to]
        if line.alone == id:  # later ones that were refused were so before this one was sent
            later = [each for each in line.refused if each > id]
            line.refused = line.refused[: len(line.refused) - len(later)]
            line.paused.difference_update(later)
            line.held = OrderedDict(dict.fromkeys(later, True) | line.held)
        line.refusal = None
        return self.left(to, id, is_answered=True, may_have_arrived=True)

    def refused(self, to: str, id: int, refusal: PresenceError) -> bool:
        """Note that a recipient may return; return False if a later message may have arrived."""
        self._delivered_at.pop(to, None)
        line = self._lines[to]
        if id < line.last_arrived:
            return False
        line.in_flight.discard(id)
        if line.alone == id:
            line.alone = None
        insort(line.refused, id)
        line.paused.add(id)
        line.refusal = refusal
        return True

    def pause_is_over(self, to: str, id: int) -> list[int]:
        """Send a refused message again, as soon as it is the first, and no other is in flight."""
        line = self._lines[to]
        line.paused.discard(id)
        return line.first_again()

    def left(
        self, to: str, id: int, *, is_answered: bool, may_have_arrived: bool
    ) -> tuple[list[int], list[int]]:
        """A message is over: answered, timed out or abandoned. Returns the same as `delivered`.

        `may_have_arrived`: whether the recipient has it, or may yet get it, if it was in flight.
        """
        if (line := self._lines.get(to)) is None:
            return [], []
        overtaken: list[int] = []
        if may_have_arrived and id in line.in_flight:
            line.last_arrived = max(line.last_arrived, id)
            overtaken = [each for each in line.refused if each < id]
            line.refused = line.refused[len(overtaken) :]
            line.paused.difference_update(overtaken)
        line.in_flight.discard(id)
        line.held.pop(id, None)
        if line.alone == id:
            line.alone = None
        if id in line.refused:
            line.refused.remove(id)
            line.paused.discard(id)
        if line.refused:
            return line.first_again(), overtaken
        sent = []
        if line.alone is None:
            sent = line.all_held() if is_answered else line.first_held()
        if not line.in_flight and not line.held:
            del self._lines[to]
        return sent, overtaken

    def refusal(self, to: str) -> PresenceError | None:
        """Return why the messages that wait have not been sent, if the server has said so."""
        line = self._lines.get(to)
        return None if line is None else line.refusal

    def clear(self) -> None:
        """Forget everything: the connection is lost."""
        self._lines.clear()
        self._delivered_at.clear()

    def _note_delivery(self, to: str, now: float) -> None:
        self._delivered_at[to] = now
        self._delivered_at.move_to_end(to)
        while next(iter(self._delivered_at.values())) <= now - STEADY_S:
            self._delivered_at.popitem(last=False)
