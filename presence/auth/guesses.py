"""Who has his tokens refused too often waits for the answers: pure, time is an argument.

Each refusal is a debt of the address that it went to, and of the user who was claimed. Debts are forgiven at
a rate; beyond `burst` of them the next refusal is told as late as it takes to forgive what is too much, up to
`delay_s`. So whoever guesses one after the other gets `rate` answers a second. A good token is let in at once
whatever was refused before: many clients may share an address, and nobody shuts out a user by guessing for
him.

An answer that is held keeps a descriptor and nothing else. So the number of these is bounded; beyond it
answers are given at once, and counted. The tables are bounded, too: whose last refusal is the longest ago is
forgotten. To fill that of addresses takes as many addresses. That of users one address can fill, with a name
of its own in each token: it makes users forgotten whose tokens are guessed, and is itself remembered.

All of it is O(1), but for O(log held) to note an answer that is held. The tables are ordered ones: of a plain
`dict` that loses its oldest entry again and again, the next oldest takes O(entries lost) to find.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

TABLE_SIZE: Final = 100_000  # of some 260 bytes each


@dataclass(frozen=True, slots=True)
class GuessStatistics:
    """Debtors and answers held now, and counters since the start.

    Attributes:
        addresses, uids: in the tables.
        forgotten: debtors that there was no room for.
        holding: answers that wait now.
        held: answers that had to wait.
        not_held: answers that should have, but too many did.
    """

    addresses: int
    uids: int
    forgotten: int
    holding: int
    held: int
    not_held: int


class Debts:
    """What each of some debtors owes, in refusals.

    Args:
        rate: how many are forgiven, a second.
        most: nobody owes more.
        size: debtors that are remembered.

    Attributes:
        forgotten: debtors that there was no room for, since the start.
    """

    def __init__(self, rate: float, most: float, size: int = TABLE_SIZE) -> None:
        self._rate = rate
        self._most = most
        self._size = size
        self._debts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # as of when, by the last refusal
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._debts)

    def of(self, debtor: str, now: float) -> float:
        """Return what a debtor owes."""
        debt = self._debts.get(debtor)
        return 0.0 if debt is None else max(0.0, debt[0] - (now - debt[1]) * self._rate)

    def add(self, debtor: str, now: float) -> float:
        """Count one more refusal; return what the debtor owes now."""
        owed = min(self.of(debtor, now) + 1.0, self._most)
        self._debts[debtor] = owed, now
        self._debts.move_to_end(debtor)
        self._forgive(now)
        if len(self._debts) > self._size:
            self._debts.popitem(last=False)
            self.forgotten += 1
        return owed

    def _forgive(self, now: float) -> None:
        """Take up to two out that owe nothing any more: more than come in."""
        for _ in range(2):
            oldest = next(iter(self._debts))
            if self.of(oldest, now) > 0.0:
                return
            del self._debts[oldest]


class Guesses:
    """Refusals by address and by user, and for how long each answer is held.

    Args:
        rate: refusals that are answered at once in the long run, a second.
        burst: and how many at once.
        delay_s: for how long at most an answer is held; 0: never.
        holding_max: answers that are held at once.
    """

    def __init__(self, rate: float, burst: int, delay_s: float, *, holding_max: int) -> None:
        self._rate = rate
        self._burst = burst
        self._delay_s = delay_s
        most = burst + max(1.0, delay_s * rate)
        self._addresses, self._uids = Debts(rate, most), Debts(rate, most)
        self._holding_max = holding_max
        self._ends: list[float] = []  # a heap: when each answer that is held is given
        self._held = self._not_held = 0

    def is_over(self, address: str, now: float) -> bool:
        """Whether an address has more refusals than are answered at once."""
        return self._addresses.of(address, now) > self._burst

    def refused(self, address: str, uid: str, now: float) -> float:
        """A token was refused.

        Args:
            address: of the client; "" if it has none.
            uid: whom it claimed to be; "" if nobody.
            now: monotonic seconds.

        Returns:
            For how many seconds the answer is to be held.
        """
        owed = self._addresses.add(address, now) if address else 0.0
        if uid:
            owed = max(owed, self._uids.add(uid, now))
        hold_s = min((owed - self._burst) / self._rate, self._delay_s)
        if hold_s <= 0.0:
            return 0.0
        self._forget_given(now)
        if len(self._ends) >= self._holding_max:
            self._not_held += 1
            return 0.0
        heapq.heappush(self._ends, now + hold_s)
        self._held += 1
        return hold_s

    def statistics(self, now: float) -> GuessStatistics:
        """Return the figures."""
        self._forget_given(now)
        return GuessStatistics(
            len(self._addresses),
            len(self._uids),
            self._addresses.forgotten + self._uids.forgotten,
            len(self._ends),
            self._held,
            self._not_held,
        )

    def _forget_given(self, now: float) -> None:
        while self._ends and self._ends[0] <= now:
            heapq.heappop(self._ends)
