"""``python -m tests.system.interrupts``: cancel calls of Redis at random; none may get another's answer.

Calls of the store are made as a node makes them, by the caller of its runtime, on a Redis of its own; a tenth
of them by way of a proxy that slices and jitters. Each is cancelled at a random moment of its life; the calls
after it must succeed, and get their own answers. In the end the stream must hold what the answers said. The
exit status is 1 if an answer was another's, or if no call was interrupted. Needs the ``loadtest`` and
``embedded`` extras, and Linux.
"""

import argparse
import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from loadtest.outcome import spread_ms
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.runtime import Caller, TrioRuntime
from presence.core.changes import Change, Op
from presence.outbox.replies import Probe, Reply, ReplyStatus
from presence.outbox.steps import Batch, Counter, Item, Opening, Step
from presence.protocol import Code
from presence.store.cluster_routes import Connect
from presence.store.embedded import embedded_redis
from presence.store.keys import Keys
from presence.store.redis_client import Redis, open_client
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.shard_clients import ShardClients
from tests.support.proxy import Proxy, ProxyFaults
from tests.support.redis_cluster import Cluster

SHARDS: Final = 4
NODES: Final = 12
FIRST_GENERATION: Final = 1000  # so that it is no other number of an answer
IDLE_TIMEOUT_MS: Final = 30_000
SHAPE: Final = Shape(Keys(shards=SHARDS), maxlen=10_000_000, seen_retention_ms=86_400_000)
PROXIED_EVERY: Final = 10  # of so many stretches one goes by way of the proxy
STRETCH: Final = 50  # interruptions in a row on the same way
PROXY_FAULTS: Final = ProxyFaults(jitter_s=0.001, slice_bytes=200)
UNCANCELLED_SHARE: Final = (
    0.7  # share of the attempts after which a call is left alone; else the next one connects
)
NOT_BEGUN_SHARE: Final = 0.05  # share of the attempts that are cancelled whether they have begun or not
LONGER, SHORTER = 1.01, 0.97  # the range of moments grows and shrinks so that three of four are in time
SWITCH_S: Final = 0.0001  # in which threads take turns: finer than a call is long
SHOWN: Final = 5


@dataclass
class InterruptCounts:
    # Calls that were cancelled while they were under way; of these, by the proxy
    interrupted: int = 0
    by_proxy: int = 0
    # Calls that were cancelled before a thread had taken them, or that were over before
    not_begun: int = 0
    finished_before: int = 0
    answers: int = 0  # that came whole and were checked
    # How long the calls took that nobody cancelled, each of them after one that was interrupted
    waits_s: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # of these, those that Redis did not answer
    crossed: list[str] = field(default_factory=list)  # answers that were not the call's own

    def lines(self, seconds: float, calls: int) -> list[str]:
        """Return them as text; `calls` is how many scripts Redis has run."""
        return [
            f"interrupted under way: {self.interrupted:,} in {seconds:.0f} s, {self.by_proxy:,} by way of the"
            f" proxy (not begun: {self.not_begun:,}; over before: {self.finished_before:,})",
            f"scripts that Redis ran: {calls:,}",
            f"answers checked: {self.answers:,}, crossed: {len(self.crossed)}",
            f"the call after an interrupted one: {spread_ms(self.waits_s)}; failed: {len(self.failed)}",
            *self.crossed[:SHOWN],
            *self.failed[:SHOWN],
        ]


class Talker:
    """A node with one user who logs in and out, a batch each; no other node has the same answers.

    A node opens a generation of its own number, which a probe shows; the ids of events that its batches wrote
    are compared with the stream in the end.

    Attributes:
        written: entry ids by the answers, and their types.
    """

    def __init__(self, number: int) -> None:
        self.uid = f"user{number}"
        self.written: dict[str, str] = {}
        self._shard = number % SHARDS
        self._newest = 0  # the number of its last batch whose answer came
        self._node = f"node{number}"
        self._generation = FIRST_GENERATION + number
        self._replication_id = ""

    def call(self, store: RedisStore) -> tuple[Callable[[], object], Callable[[object], str]]:
        """Return a call, and a function that returns what is wrong with its answer, or ""."""
        kind = random.random()
        if kind < 0.6 or not self._newest:
            step = self._next_batch()
            return lambda: store.apply([step]), self._check_reply
        if kind < 0.95:
            wanted = dict.fromkeys(random.sample(range(SHARDS), random.randint(1, SHARDS)), 0)
            wanted[self._shard] = 0
            return lambda: store.probe(self._node, wanted), self._check_probes
        return store.check_meta, lambda answer: "" if answer is None else f"not for check_meta: {answer}"

    def _next_batch(self) -> Step:
        """Return the next batch; the same one until its answer arrived."""
        n, now, now_ms = self._newest + 1, time.monotonic(), round(time.time() * 1000)
        counter = Counter(self._node, self._generation, n)
        if n == 1:
            return Batch(self._shard, counter, "", (), now, opening=Opening(self._node))
        op, code = (Op.LOGIN, Code.LOGIN) if n % 2 == 0 else (Op.END, Code.LOGOUT)
        change = Change(op, self.uid, "", f"{self.uid}-{n // 2}", code, now, now_ms, now_ms, IDLE_TIMEOUT_MS)
        return Batch(self._shard, counter, self._replication_id, (Item(change),), now)

    def _check_reply(self, answer: object) -> str:
        match answer:
            case [Reply(status=ReplyStatus.OK) as reply]:
                opens, last = self._newest == 0, next(reversed(self.written), "")
                if (reply.opened is not None) is not opens or (reply.last_id in {"", last}) is not opens:
                    return f"no answer to batch {self._newest + 1}: {reply}"
                self._newest += 1
                self._replication_id = reply.replication_id
                if not opens:
                    self.written[reply.last_id] = "online" if self._newest % 2 == 0 else "offline"
                return ""
        return f"no answer to a batch: {answer}"

    def _check_probes(self, answer: object) -> str:
        match answer:
            case {self._shard: Probe(counter=Counter(_, self._generation, n))}:
                # One more than known: of a batch that was carried out though its call was interrupted.
                return "" if n in {self._newest, self._newest + 1} else f"number {n}, not {self._newest}"
        return f"not of {self._node}: {answer}"

    def mismatches(self, entries: Mapping[tuple[str, str], str]) -> list[str]:
        """Return what of `written` is missing in its stream or differs; `entries`: types by uid and id."""
        return [
            f"{self.uid} was told {entry_id}, {entries.get((self.uid, entry_id))}"
            for entry_id, kind in self.written.items()
            if entries.get((self.uid, entry_id)) != kind
        ]


class _Careless:
    """Connects as `open_client` does, but keeps its connection when a call is interrupted.

    For comparison. It stands for a client, its pool and the pool's one connection.
    """

    def __init__(self, url: str) -> None:
        self.connection_pool = self
        self._client = open_client(url)
        pool: Any = self._client.connection_pool  # redis-py's, whose types are loose
        self._connection: Any = pool.get_connection()
        self.pack_commands = self._connection.pack_commands
        self.send_packed_command = self._connection.send_packed_command

    def get_connection(self) -> "_Careless":
        return self

    def can_read(self) -> bool:
        return False

    def disconnect(self, *, inuse_connections: bool) -> None:
        pass

    def read_response(self) -> Any:
        return self._connection.read_response(disconnect_on_error=False)

    def close(self) -> None:
        self._client.connection_pool.disconnect()


class CarelessOpener:
    """Opens one such client per URL; replaces `open_client`."""

    def __init__(self) -> None:
        self._clients: dict[str, Any] = {}

    def __call__(self, url: str) -> Redis:
        if url not in self._clients:
            self._clients[url] = _Careless(url)
        client: Redis = self._clients[url]
        return client

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


class Way:
    """A store, as a node uses it."""

    def __init__(self, url: str, connect: Connect, *, is_proxied: bool) -> None:
        self.is_proxied = is_proxied
        self.range_s = 0.001  # after a call has begun, in which it is cancelled
        self.store = RedisStore(url, SHAPE, connect)
        self.caller: Caller = TrioRuntime().loop_caller()


class Cancelled:
    """A call that a thread cancels after a delay: no timer of an event loop is fine enough."""

    def __init__(self, blocking: Callable[[], object], scope: trio.CancelScope, wait_s: float) -> None:
        self.has_begun = self.has_ended = False
        self._blocking = blocking
        self._scope = scope
        self._token = trio.lowlevel.current_trio_token()
        self._timer = threading.Timer(wait_s, self._cancel)
        self._timer.daemon = True

    def __call__(self) -> object:
        self.has_begun = True
        self.start()
        answer = self._blocking()
        self.has_ended = True
        return answer

    def start(self) -> None:
        """Let the time run, if it does not yet."""
        if not self._timer.ident:
            self._timer.start()

    def _cancel(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._scope.cancel)


class InterruptTrial:
    """Makes calls, interrupts them, and checks the answers of the others."""

    def __init__(self, figures: InterruptCounts) -> None:
        self._figures = figures
        self.talkers = [Talker(number) for number in range(NODES)]

    async def run(self, ways: list[Way], count: int) -> None:
        stretch = 0
        while self._figures.interrupted < count:
            way = ways[stretch % PROXIED_EVERY == 0]
            stretch += 1
            for _ in range(STRETCH):
                await self._interrupt(way)
                if random.random() < UNCANCELLED_SHARE:
                    await self._follow(way)

    async def _interrupt(self, way: Way) -> None:
        """Make a call and cancel it at a random moment."""
        figures = self._figures
        blocking, judge = random.choice(self.talkers).call(way.store)
        is_over = False
        with trio.CancelScope() as scope:
            call = Cancelled(blocking, scope, random.uniform(0, way.range_s))
            if random.random() < NOT_BEGUN_SHARE:
                call.start()
            answer = await self._call(way, call)
            is_over = True
        if is_over:
            figures.finished_before += 1
            way.range_s *= SHORTER
            self._check(answer, judge)
        elif not call.has_begun:
            figures.not_begun += 1
        elif not call.has_ended:  # the cancellation was raised in it
            figures.interrupted += 1
            way.range_s *= LONGER
            figures.by_proxy += way.is_proxied

    async def _follow(self, way: Way) -> None:
        """Make a call that is not cancelled."""
        started = time.perf_counter()
        blocking, judge = random.choice(self.talkers).call(way.store)
        answer = await self._call(way, blocking)
        self._figures.waits_s.append(time.perf_counter() - started)
        self._check(answer, judge)

    async def _call(self, way: Way, blocking: Callable[[], object]) -> object:
        try:
            return await way.caller.call(blocking)
        except Exception as error:  # an answer of another form than that of the call can break anything
            return error

    def _check(self, answer: object, judge: Callable[[object], str]) -> None:
        parts = [*answer.values()] if isinstance(answer, dict) else answer
        for each in parts if isinstance(parts, list) else [parts]:
            if isinstance(each, (StoreUnavailable, StoreError)):
                self._figures.failed.append(str(each))
                return
        self._figures.answers += 1
        if wrong := judge(answer):
            self._figures.crossed.append(wrong)


@contextlib.contextmanager
def _redis(*, in_cluster: bool) -> Iterator[tuple[str, str]]:
    """Run a Redis; yield its URL and one through a proxy, or twice the URL of a cluster."""
    if in_cluster:
        with Cluster() as cluster:
            yield cluster.url, cluster.url
        return
    with embedded_redis() as server, Proxy(server.url.removeprefix("unix://")) as proxy:
        proxy.disturb(PROXY_FAULTS)
        yield server.url, proxy.url


def run(
    count: int, seed: int, *, guard_off: bool = False, in_cluster: bool = False
) -> tuple[InterruptCounts, list[str]]:
    """Interrupt so many calls; return what happened, and the same in words."""
    random.seed(seed)
    figures, careless = InterruptCounts(), CarelessOpener()
    trial, connect = InterruptTrial(figures), careless if guard_off else open_client
    started, switch_s = time.monotonic(), sys.getswitchinterval()
    with _redis(in_cluster=in_cluster) as (url, second_url):
        ways = [Way(each, connect, is_proxied=each != url) for each in (url, second_url)]
        sys.setswitchinterval(SWITCH_S)
        trio.run(trial.run, ways, count)
        sys.setswitchinterval(switch_s)
        seconds = time.monotonic() - started
        scripts, entries = _carried_out(url)
        for way in ways:
            way.store.close()
        careless.close()
    figures.crossed += [wrong for talker in trial.talkers for wrong in talker.mismatches(entries)]
    return figures, figures.lines(seconds, scripts)


def _carried_out(url: str) -> tuple[int, dict[tuple[str, str], str]]:
    """Return how many scripts Redis has run, and the types of the streams' entries by uid and id."""
    scripts = 0
    entries: dict[tuple[str, str], str] = {}
    with ShardClients(url) as access:
        for shard in range(SHARDS):
            key = SHAPE.keys.events(shard)
            rows: Any = access.at(key).xrange(key)
            entries |= {
                (fields[b"uid"].decode(), entry_id.decode()): fields[b"type"].decode()
                for entry_id, fields in rows
            }
        for server in access.primaries():
            stats: Any = server.info("commandstats")
            scripts += sum(
                stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha")
            )
    return scripts, entries


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.interrupts", description=__doc__)
    add = parser.add_argument
    add("--count", type=int, default=100_000, help="calls to interrupt while they are under way")
    add("--seed", type=int, default=1, help="of what is called, and when it is cancelled")
    add("--cluster", action="store_true", help="on a cluster of three, without a proxy")
    add(
        "--guard-off", action="store_true", help="keep connections whose call was interrupted, for comparison"
    )
    given = parser.parse_args(words)
    figures, lines = run(given.count, given.seed, guard_off=given.guard_off, in_cluster=given.cluster)
    print("\n".join(lines))
    failed = bool(figures.crossed) or not figures.interrupted
    print("tests.system.interrupts: " + ("FAILED" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
