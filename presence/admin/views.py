"""Queries of Redis for HTTP requests: blocking calls in a few threads, with a time-out.

When Redis hangs, the threads hang with it for as long as a call may take. Requests that get no thread or no
answer in time are refused because Redis is unreachable.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import trio

from presence.admin.responses import ApiError, busy, redis_away, redis_refuses
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import run_in_thread
from presence.common.text import plain_state
from presence.ops.ban import BanResult, ban, ban_addresses, unban, unban_addresses
from presence.ops.explain import Explainer
from presence.ops.kick import KickResult, kick
from presence.reader import MemberPage, Page, PresenceReader, Room, RoomPage, UserFilter
from presence.rosters import MAX_MB, PresenceRosters
from presence.sender import Message, Outcome, PresenceSender
from presence.store.ban_table import TooManyBans
from presence.store.error_classes import passes
from presence.store.redis_client import RedisError
from presence.store.roster_table import RosterChange, RosterFull

THREADS: Final = 8
KICK_THREADS: Final = 4  # separate threads, because a kick may wait for long
SEND_THREADS: Final = 16  # separate threads, because a message may wait for the reports of nodes
SEND_TIMEOUT_S: Final = 5.0
CONFIRM_THREADS: Final = 64  # separate threads, because a message may wait for half a minute
QUERY_TIMEOUT_S: Final = 1.8  # so that a request is answered or refused within 2 s
EXPLAIN_TIMEOUT_S: Final = 5.0  # nodes on other machines are asked through Redis

T = TypeVar("T")


class RedisQueries:
    """Queries of Redis, kicks, bans and messages. All raise `ApiError` if Redis does not answer."""

    def __init__(self, redis_url: str, prefix: str, roster_mb: int = MAX_MB) -> None:
        self.reader = PresenceReader(redis_url, prefix=prefix)
        self._url = redis_url
        self._sender = PresenceSender(redis_url, "-", prefix=prefix)  # each request has a name of its own
        self._rosters = PresenceRosters(redis_url, prefix=prefix, max_mb=roster_mb)
        self._explainer = Explainer(redis_url, prefix=prefix)
        self._limiter = trio.CapacityLimiter(THREADS)
        self._acting = trio.CapacityLimiter(KICK_THREADS)
        self._sending = trio.CapacityLimiter(SEND_THREADS)
        self._confirming = trio.CapacityLimiter(CONFIRM_THREADS)

    async def states(self, uids: Iterable[str]) -> dict[str, Any]:
        """Return the states of users, as ``presence status --json`` does."""
        states: dict[str, Any] = plain_state(await self._call(lambda: self.reader.states(uids)))
        return states

    async def count(self) -> int:
        """Return how many users are online."""
        return await self._call(self.reader.count)

    async def page(self, cursor: str | None, size: int, wanted: UserFilter) -> Page:
        """Return a page of the wanted users online.

        Raises:
            ValueError: the cursor is invalid.
        """
        await self._call(self.reader.keys)  # reports errors of Redis here, not as a bad cursor
        page = await self._call(lambda: self.reader.page(cursor, size=size, wanted=wanted), is_asked=True)
        return Page(plain_state(page.states), page.cursor)

    async def nodes(self) -> dict[str, Any]:
        """Return all nodes, as ``presence nodes --json`` does."""
        return {node.node: asdict(node) for node in await self._call(self.reader.nodes)}

    async def kick(self, uid: str, device: str | None, wait_s: float, by: str) -> KickResult:
        """End a user's sessions, and wait until they have ended."""
        await self.count()  # detects a hanging Redis before the long call
        if self._acting.available_tokens < 1:
            raise busy(f"{KICK_THREADS} kicks or bans are pending already")

        def end() -> KickResult:
            return kick(self._url, self.reader, [uid], wait_s=wait_s, by=by, device=device)

        return await self._call(end, within_s=QUERY_TIMEOUT_S + wait_s, limiter=self._acting)

    async def bans(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return all bans, of users and of addresses, as ``presence bans --json`` does."""
        bans = await self._call(self.reader.bans)
        addresses = await self._call(self.reader.address_bans)
        return [asdict(each) for each in bans], [asdict(each) for each in addresses]

    async def ban_addresses(
        self, addresses: list[str], *, for_s: float | None, reason: str, by: str
    ) -> int | None:
        """Ban addresses that were checked; return when the bans end."""

        def keep_out() -> int | TooManyBans | None:
            try:
                return ban_addresses(
                    self._url, self.reader, addresses, for_s=for_s, reason=reason, by=by, force=True
                )
            except TooManyBans as error:
                return error

        until_ms = await self._call(keep_out)
        if isinstance(until_ms, TooManyBans):
            raise ApiError(409, "too_many_bans", str(until_ms))
        return until_ms

    async def unban_addresses(self, addresses: list[str], by: str) -> dict[str, bool]:
        """Lift bans of addresses; return which were banned."""
        return await self._call(lambda: unban_addresses(self._url, self.reader, addresses, by=by))

    async def ban(
        self, uids: list[str], *, device: str | None, for_s: float | None, reason: str, by: str, wait_s: float
    ) -> BanResult:
        """Ban users, and wait until their sessions have ended."""
        await self.count()  # as for a kick
        if self._acting.available_tokens < 1:
            raise busy(f"{KICK_THREADS} kicks or bans are pending already")

        def keep_out() -> BanResult | TooManyBans:
            try:
                return ban(
                    self._url,
                    self.reader,
                    uids,
                    device=device,
                    for_s=for_s,
                    reason=reason,
                    by=by,
                    wait_s=wait_s,
                )
            except TooManyBans as error:
                return error

        banned = await self._call(keep_out, within_s=QUERY_TIMEOUT_S + wait_s, limiter=self._acting)
        if isinstance(banned, TooManyBans):
            raise ApiError(409, "too_many_bans", str(banned))
        return banned

    async def unban(self, uids: list[str], device: str | None, by: str) -> dict[str, list[str | None]]:
        """Lift bans of users; return the devices of each whose bans were lifted."""
        return await self._call(lambda: unban(self._url, self.reader, uids, device=device, by=by))

    async def send(self, messages: Sequence[Message], name: str) -> list[Outcome]:
        """Send messages to users under the name of a sender; an `ApiError` means that none was sent."""
        await self.count()  # detects a hanging Redis before anything is sent
        confirm_s = max((message.confirm or 0.0 for message in messages), default=0.0)
        limiter = self._confirming if confirm_s else self._sending
        if limiter.available_tokens < 1:
            raise busy(f"{limiter.total_tokens:.0f} such requests with messages are pending already")

        def send() -> list[Outcome]:
            return self._sender.send_all(messages, name=name)

        # Not a time-out of the call: they may have been sent.
        with trio.move_on_after(SEND_TIMEOUT_S + confirm_s):
            return await self._call(send, within_s=math.inf, limiter=limiter)
        return [Outcome("unknown")] * len(messages)

    async def roster(self, uid: str) -> list[str] | None:
        """Return the users in a roster; None if there is none."""
        return await self._call(lambda: self._rosters.get(uid))

    async def change_roster(self, change: RosterChange) -> int:
        """Change a roster; return how many users it has."""

        def make() -> int | RosterFull:
            try:
                if change.is_new:
                    return self._rosters.put(change.uid, change.added)
                return self._rosters.change(change.uid, remove=change.removed, add=change.added)
            except RosterFull as error:
                return error

        users = await self._call(make)
        if isinstance(users, RosterFull):
            raise ApiError(409, "roster_full", str(users))
        return users

    async def rooms(self, largest: int | None, cursor: str | None, size: int) -> RoomPage:
        """Return the largest rooms, or a page of all.

        Raises:
            ValueError: the cursor is invalid.
        """
        if largest is not None:
            return RoomPage(await self._call(lambda: self.reader.rooms(largest=largest)), None)
        await self._call(self.reader.keys)  # as for a page of users
        return await self._call(lambda: self.reader.room_page(cursor, size=size), is_asked=True)

    async def room(self, name: str, cursor: str | None, members: int) -> tuple[Room, MemberPage]:
        """Return a room, with a page of so many of its members; 0: none.

        Raises:
            ValueError: the cursor is invalid.
        """
        room = await self._call(lambda: self.reader.room(name))
        if not members:
            return room, MemberPage({}, None)
        page = await self._call(lambda: self.reader.members(name, cursor, size=members), is_asked=True)
        return room, page

    async def explain(self, uid: str, here: list[dict[str, Any]]) -> dict[str, Any]:
        """Return why a user is online or offline.

        Raises:
            ValueError: the uid is invalid.
        """

        def explain() -> dict[str, Any]:
            return self._explainer.explain(uid, here)

        return await self._call(explain, within_s=EXPLAIN_TIMEOUT_S, is_asked=True)

    def close(self) -> None:
        """Close the connections; calls in progress fail."""
        self.reader.close()
        self._explainer.close()
        self._sender.close()
        self._rosters.close()

    async def _call(
        self,
        ask: Callable[[], T],
        *,
        within_s: float = QUERY_TIMEOUT_S,
        limiter: trio.CapacityLimiter | None = None,
        is_asked: bool = False,
    ) -> T:
        return await ask_redis(ask, limiter or self._limiter, within_s, is_asked=is_asked)


async def ask_redis(
    ask: Callable[[], T],
    limiter: trio.CapacityLimiter,
    within_s: float = QUERY_TIMEOUT_S,
    *,
    is_asked: bool = False,
) -> T:
    """Run a blocking call in a thread, with a time-out that includes the wait for a thread.

    With `is_asked` a `ValueError` is about the request, not about data in Redis, and is passed on.

    Raises:
        ApiError: Redis does not answer, or refuses.
    """
    try:
        with trio.fail_after(within_s):
            return await run_in_thread(ask, limiter)
    except trio.TooSlowError:
        raise redis_away("no answer in time") from None
    except (RedisError, StoreUnavailable, StoreError, OSError) as error:
        is_away = isinstance(error, StoreUnavailable) or passes(error)
        raise (redis_away if is_away else redis_refuses)(error) from None
    except ValueError as error:
        if is_asked:
            raise
        raise redis_refuses(error) from None
