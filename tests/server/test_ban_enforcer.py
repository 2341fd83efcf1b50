"""Bans on two real servers that share a Redis, and how a node follows the table."""

import math
import time
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import structlog
import trio

from presence.common.clock import Clock
from presence.common.errors import StoreUnavailable
from presence.common.networks import network_of
from presence.core.ban_list import AddressBan, Ban, BanList
from presence.ops import ban as ops
from presence.protocol import Code, Kind, Packet
from presence.reader import PresenceReader
from presence.server.ban_enforcer import MAX_BANS_PER_TURN, MAX_SESSIONS_PER_TURN, BanEnforcer
from presence.server.node_assembly import Node
from presence.store.ban_table import BanSnapshot, StoredAddressBan, StoredBan
from presence.store.embedded import EmbeddedRedis
from tests.server.test_control_listener import Pair, serving
from tests.support.waiting import InlineCallsRuntime, until
from tests.transports.harness import Client

AT_ONCE_S = 1.0


async def ban(redis_server: EmbeddedRedis, uid: str, **how: Any) -> ops.BanResult:
    with PresenceReader(redis_server.url) as reader:
        call = partial(ops.ban, redis_server.url, reader, [uid], by="op", wait_s=5.0, **how)
        return await trio.to_thread.run_sync(call)


def known(pair: Pair) -> list[BanList]:
    """Return the bans that each server knows."""
    return [server.node.engine.login_policy.bans for server in pair.servers]


async def unban(redis_server: EmbeddedRedis, uid: str) -> dict[str, list[str | None]]:
    with PresenceReader(redis_server.url) as reader:
        return await trio.to_thread.run_sync(partial(ops.unban, redis_server.url, reader, [uid], by="op"))


async def answers(pair: Pair, uid: str) -> list[Packet]:
    """Return the answers of both servers to a login."""
    found = []
    for address in pair.addresses:
        client = Client(await trio.open_tcp_stream(*address))
        found.append(await client.login(uid))
        await client.stream.aclose()
    return found


async def test_a_ban_ends_the_session_and_refuses_logins_at_all_nodes_until_it_is_lifted(
    redis_server: EmbeddedRedis,
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(redis_server) as pair:
            await until(lambda: all(map(pair.is_subscribed, (0, 1))))
            phone = await pair.log_in(0)
            started = time.monotonic()
            banned = await ban(redis_server, "ann", reason="rude")
            (goodbye,) = await phone.rest()
            # The node without a session of hers learns of it in its own time.
            await until(lambda: all(known(pair)))
            took_s = time.monotonic() - started
            refusals = await answers(pair, "ann")
            assert await unban(redis_server, "ann") == {"ann": [None]}
            await until(lambda: not any(known(pair)))
            allowed = await answers(pair, "ann")
    assert took_s < AT_ONCE_S
    assert (banned.until_ms, len(banned.ended.targets), dict(banned.ended.reasons)) == (None, 1, {})
    assert (goodbye.payload["code"], goodbye.payload["reconnect"]) == (Code.BANNED, False)
    assert [each.payload["message"] for each in (goodbye, *refusals)] == ["rude"] * 3
    assert [each.kind for each in (*refusals, *allowed)] == [Kind.ERROR] * 2 + [Kind.OK] * 2
    (ended,) = [line for line in logs if line["event"] == "session banned"]
    assert ended["uid"] == "ann"
    for event in ("users banned", "users unbanned"):
        lines = [line for line in logs if line["event"] == event]
        assert [(line["by"], line["uids"]) for line in lines] == [("op", ["ann"])] * 2, "at each node"


async def test_a_ban_ends_by_itself(redis_server: EmbeddedRedis) -> None:
    async with serving(redis_server) as pair:
        await until(lambda: all(map(pair.is_subscribed, (0, 1))))
        await ban(redis_server, "ann", for_s=2.0)
        await until(lambda: all(known(pair)))
        refusals = await answers(pair, "ann")
        assert all(1 <= each.payload["retry_after"] <= 2 for each in refusals)
        now = pair.servers[0].clock.now
        await until(lambda: not any(each.find("ann", "", now()) for each in known(pair)))
        assert {each.kind for each in await answers(pair, "ann")} == {Kind.OK}


async def test_a_ban_that_was_made_before_the_start_counts_from_the_first_login(
    redis_server: EmbeddedRedis,
) -> None:
    await ban(redis_server, "ann")
    async with serving(redis_server) as pair:
        assert [each.payload["code"] for each in await answers(pair, "ann")] == [Code.BANNED] * 2


class Table:
    """A table of bans in place of Redis."""

    def __init__(self) -> None:
        self.version, self.bans, self.is_away = b"1", list[StoredBan](), False
        self.addresses: list[StoredAddressBan] = []
        self.asked: list[bytes | None] = []

    def put(self, *bans: StoredBan) -> None:
        self.version, self.bans = self.version + b"1", list(bans)

    def read(self, known: bytes | None = None) -> BanSnapshot | None:
        self.asked.append(known)
        if self.is_away:
            raise StoreUnavailable("away")
        if known == self.version:
            return None
        return BanSnapshot(self.version, 1000, tuple(self.bans), tuple(self.addresses))

    def close(self) -> None:
        pass


class _Session:
    def __init__(self, transport: object) -> None:
        self.transport = transport


class Stage:
    """An enforcer with its table, a node of which only the bans are real, and its time."""

    def __init__(self) -> None:
        self.now, self.table = 50.0, Table()
        self.turns: list[list[Ban]] = [[]]
        self.policy = SimpleNamespace(bans=BanList())
        self.cluster = SimpleNamespace()
        self.sessions: dict[Any, str] = {}  # to the addresses of their clients
        self.ended: list[list[Any]] = [[]]  # by turn
        engine = SimpleNamespace(login_policy=self.policy, registry=self.sessions)
        node = SimpleNamespace(
            engine=engine,
            cluster=self.cluster,
            enforce_ban=self._enforce,
            enforce_address_ban=lambda session, _ban: self.ended[-1].append(session),
        )
        runtime = InlineCallsRuntime()
        runtime.sleep = self._sleep  # type: ignore[method-assign]
        self.enforcer = BanEnforcer(
            cast(Node, node),
            self.table,
            Clock(lambda: self.now),
            runtime,
            lambda session: self.sessions[session],
        )

    def connect(self, address: str, *, is_lost: bool = False) -> Any:
        """Add a session; return it."""
        session = _Session(None if is_lost else self)
        self.sessions[session] = address
        return session

    @property
    def bans(self) -> BanList:
        bans: BanList = self.policy.bans
        return bans

    def _enforce(self, ban: Ban) -> None:
        self.turns[-1].append(ban)

    async def _sleep(self, seconds: float) -> None:
        self.turns.append([])
        self.ended.append([])
        await trio.lowlevel.checkpoint()


def stored(uid: str, until_ms: int | None = None) -> StoredBan:
    return StoredBan(uid, None, until_ms, 0, "", "op")


async def test_the_end_of_a_ban_is_by_redis_clock_and_what_has_ended_is_dropped() -> None:
    stage = Stage()
    stage.table.put(stored("ann", 3500), stored("bob"))
    await stage.enforcer.refresh()
    assert list(stage.bans.all) == [Ban("ann", None, 52.5, ""), Ban("bob", None, math.inf, "")]
    await stage.enforcer.refresh()
    assert len(stage.bans) == 2
    stage.now = 52.5
    await stage.enforcer.refresh()
    assert list(stage.bans.all) == [Ban("bob", None, math.inf, "")]
    assert sum(map(len, stage.turns)) == 2, "enforced once"
    assert stage.table.asked == [None, stage.table.version, stage.table.version]


async def test_while_redis_is_away_the_known_bans_stay() -> None:
    stage = Stage()
    stage.table.put(stored("ann"))
    await stage.enforcer.refresh()
    stage.table.is_away = True
    stage.table.put()
    await stage.enforcer.refresh()
    assert len(stage.bans) == 1
    stage.table.is_away = False
    await stage.enforcer.refresh()
    assert len(stage.bans) == 0


async def test_a_node_reads_the_table_once_it_has_a_lease_again() -> None:
    stage = Stage()
    with trio.move_on_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.enforcer.run)
            await trio.testing.wait_all_tasks_blocked()
            stage.table.put(stored("ann"))  # announced to the nodes that have a lease
            assert len(stage.bans) == 0
            stage.cluster.on_entered()
            await trio.testing.wait_all_tasks_blocked()
            assert len(stage.bans) == 1
            nursery.cancel_scope.cancel()


async def test_a_large_table_is_enforced_in_slices() -> None:
    stage = Stage()
    stage.table.put(*(stored(f"u{n}") for n in range(2 * MAX_BANS_PER_TURN + 1)))
    await stage.enforcer.refresh()
    sizes: Sequence[int] = [len(turn) for turn in stage.turns if turn]
    assert sizes == [MAX_BANS_PER_TURN, MAX_BANS_PER_TURN, 1]


# Addresses


async def ban_addresses(redis_server: EmbeddedRedis, *addresses: str, **how: Any) -> int | None:
    with PresenceReader(redis_server.url) as reader:
        call = partial(ops.ban_addresses, redis_server.url, reader, addresses, by="op", force=True, **how)
        return await trio.to_thread.run_sync(call)


async def unban_addresses(redis_server: EmbeddedRedis, *addresses: str) -> dict[str, bool]:
    with PresenceReader(redis_server.url) as reader:
        call = partial(ops.unban_addresses, redis_server.url, reader, addresses, by="op")
        return await trio.to_thread.run_sync(call)


async def test_a_ban_of_an_address_ends_its_sessions_and_refuses_it_at_all_nodes_until_it_is_lifted(
    redis_server: EmbeddedRedis,
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(redis_server) as pair:
            await until(lambda: all(map(pair.is_subscribed, (0, 1))))
            phone = await pair.log_in(0)
            assert await ban_addresses(redis_server, "127.0.0.0/24", reason="spam") is None
            (goodbye,) = await phone.rest()
            await until(lambda: all(known(pair)))
            refusals = await answers(pair, "bob")
            assert await unban_addresses(redis_server, "127.0.0.0/24", "192.0.2.1") == {
                "127.0.0.0/24": True,
                "192.0.2.1": False,
            }
            await until(lambda: not any(known(pair)))
            allowed = await answers(pair, "ann")
    assert (goodbye.payload["code"], goodbye.payload["message"]) == (Code.BANNED, "spam")
    assert [each.payload["code"] for each in refusals] == [Code.BANNED] * 2
    assert [each.kind for each in allowed] == [Kind.OK] * 2
    (ended,) = [line for line in logs if line["event"] == "session banned"]
    assert (ended["uid"], ended["address"]) == ("ann", "127.0.0.0/24")
    for event in ("addresses banned", "addresses unbanned"):
        lines = [line for line in logs if line["event"] == event]
        assert [(line["by"], line["addresses"]) for line in lines] == [("op", ["127.0.0.0/24"])] * 2


def address_ban(address: str, until_ms: int | None = None) -> StoredAddressBan:
    return StoredAddressBan(address, until_ms, 0, "", "op")


async def test_only_sessions_with_a_connection_from_a_banned_address_end() -> None:
    stage = Stage()
    banned = stage.connect("192.0.2.7")
    stage.connect("198.51.100.1")
    stage.connect("192.0.2.8", is_lost=True)
    stage.table.addresses.append(address_ban("192.0.2.0/24", 3500))
    await stage.enforcer.refresh()
    assert [each for turn in stage.ended for each in turn] == [banned]
    assert stage.bans.addresses == (AddressBan(network_of("192.0.2.0/24"), 52.5, ""),)
    stage.now = 52.5
    await stage.enforcer.refresh()
    assert not stage.bans, "it has ended"


async def test_sessions_are_searched_for_new_bans_only() -> None:
    stage = Stage()
    stage.table.addresses.append(address_ban("192.0.2.7"))
    await stage.enforcer.refresh()
    late = stage.connect("192.0.2.7")  # the login policy refuses it
    stage.table.put(stored("ann"))
    await stage.enforcer.refresh()
    assert [each for turn in stage.ended for each in turn] == []
    stage.table.put()
    stage.table.addresses.append(address_ban("192.0.2.0/24"))
    await stage.enforcer.refresh()
    assert [each for turn in stage.ended for each in turn] == [late]


async def test_many_sessions_are_searched_in_slices() -> None:
    stage = Stage()
    for _ in range(2 * MAX_SESSIONS_PER_TURN + 1):
        stage.connect("192.0.2.7")
    stage.table.addresses.append(address_ban("192.0.2.7"))
    await stage.enforcer.refresh()
    assert [len(turn) for turn in stage.ended if turn] == [MAX_SESSIONS_PER_TURN, MAX_SESSIONS_PER_TURN, 1]
