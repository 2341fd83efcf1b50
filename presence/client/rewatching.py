"""The watches that a client asks for by itself: anew after a return, and those that nobody waits for."""

import math
from collections import deque

import protocol
from presence.client.errors import PresenceError, RequestFailed
from presence.client.pacing import Backoff, Chance
from presence.client.pushes import WatchEnded
from presence.client.session import Answer, Caused, Session
from presence.client.watches import Watches
from protocol import Code

ANSWER_TIMEOUT_S = 10.0
AT_ONCE = 2  # requests under way: a server has few places for each client


class Rewatching:
    """The requests that a client makes by itself, until each is granted or refused for good.

    A server that is busy, fails or does not answer is asked again, less and less often.

    Args:
        session: the new connection.
        watches: whom to watch.
        now: when its login was answered.
        chance: see `presence.client.pacing`.

    Attributes:
        due: when something is to be asked; infinite while nothing is.
    """

    __slots__ = ("_backoff", "_chance", "_session", "_under_way", "_waiting", "_watches", "due")

    def __init__(self, session: Session, watches: Watches, now: float, chance: Chance) -> None:
        self._session = session
        self._watches = watches
        self._chance = chance
        self._backoff = Backoff()
        self._waiting = deque(watches.batches())
        self._under_way: dict[int, list[str]] = {}
        self.due = now if self._waiting else math.inf

    def add(self, uids: list[str], now: float) -> None:
        """Ask for some more, at once unless the server wants to be left alone for a while."""
        self._waiting.append(uids)
        if self.due == math.inf:
            self._ask(now)

    def tick(self, now: float) -> None:
        """Ask, if it is time: for those who are still watched."""
        if now >= self.due:
            self.due = math.inf
            self._ask(now)

    def settle(self, caused: Caused, now: float) -> Caused:
        """Take out the answers to own requests, and put in what they mean."""
        if not self._under_way:
            return caused
        rest: Caused = []
        for each in caused:
            uids = self._under_way.pop(each.id, None) if isinstance(each, Answer) else None
            if uids is None or not isinstance(each, Answer):
                rest.append(each)
            elif isinstance(each.result, PresenceError):
                rest += self._refused(uids, each.result, now)
        if self.due == math.inf:
            self._ask(now)
        return rest

    def without_own(self, failed: Caused) -> Caused:
        """Take out the failures of own requests: the connection is gone, and the next one begins anew."""
        return [each for each in failed if not (isinstance(each, Answer) and each.id in self._under_way)]

    def _ask(self, now: float) -> None:
        still = self._watches.states() if self._waiting else {}
        while self._waiting and len(self._under_way) < AT_ONCE:
            if uids := [uid for uid in self._waiting.popleft() if uid in still]:
                id = self._session.request(protocol.watch(uids), ANSWER_TIMEOUT_S, now)
                self._under_way[id] = uids

    def _refused(self, uids: list[str], error: PresenceError, now: float) -> list[WatchEnded]:
        if isinstance(error, RequestFailed) and error.code in list(Code) and not Code(error.code).reconnect:
            self._watches.forget(uids)
            return [WatchEnded(tuple(uids), error.code, error.reason, error.message)]
        retry_after = error.retry_after if isinstance(error, RequestFailed) else None
        self._waiting.append(uids)
        self.due = min(self.due, now + self._backoff.next_s(self._chance, 0.0, retry_after))
        return []
