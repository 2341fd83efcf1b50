"""Every script is stopped before its k-th command, for every k, and its call is then repeated.

After the stop nothing is written, or the repeated call completes it once: in the end all keys are those of a
call that was not stopped. The clock of the scripts stands still, so that both can be compared as they are.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgpack
import pytest

from loadtest.servers import redis_binary
from presence.followups import keys
from presence.outbox.queue import SkippedChanges
from presence.outbox.steps import Batch, Compare, Counter, Fencing, Opening, Retirement, Step, Sweep
from presence.store import script_runner
from presence.store.client import ResponseError
from presence.store.keys import Keys
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.script_runner import Call
from tests.store.driving import NOW_S, Hand, end, hold, login, update
from tests.store.servers import Server

SHAPE: Final = Shape(
    Keys(),
    maxlen=1_000_000,
    seen_retention_ms=10**13,
    device_events=True,
    max_sessions=2,
    session_policy="newest",
)
CLOCK: Final = "{'1700000000', '0'}"
COMMANDS_MAX: Final = 200  # of one call here
STOPS: Final = """
local whole, commands, stop = redis, 0, %d
local function is_stop() commands = commands + 1 return commands == stop end
local redis = {error_reply = whole.error_reply, status_reply = whole.status_reply, sha1hex = whole.sha1hex,
  acl_check_cmd = whole.acl_check_cmd}
redis.call = function(...) if is_stop() then error('stopped') end return whole.call(...) end
redis.pcall = function(...) if is_stop() then return {err = 'ERR stopped'} end return whole.pcall(...) end
"""


@dataclass(frozen=True)
class Scene:
    name: str
    act: Callable[[Hand, Hand], Step | Call]  # prepares with two nodes, and returns the call to stop


def _apply(a: Hand, b: Hand) -> Step:
    b.apply(login("u", "s1", "desk"), login("w", "s2"), login("x", "s3"))
    changes = [
        *(login("u", "s4", "phone"), login("u", "s5", "desk"), login("n", "s6"), end("n", "s6")),
        *(login("m", "s7"), update("m", "s7"), login("w", "s8"), hold("x", "s9", "tv")),
    ]
    return replace(a.batch(changes, a.n + 1), complete=True)


def _apply_ends(a: Hand, b: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"), login("w", "s3", "desk"))
    b.apply(hold("u", "s4", "tv"))
    return a.batch([end("u", "s1"), end("w", "s2"), end("w", "s3", "desk"), login("u", "s5")], a.n + 1)


def _open(a: Hand, _: Hand) -> Step:
    a.apply(login("u", "s1"))
    opening = Opening(a.node, "1700000000900-7", SkippedChanges(3, 1, 2, 0.0))
    return Batch(0, Counter("a2", 2, 1), "", (), NOW_S, opening=opening)


def _retire(a: Hand, _: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"), login("w", "s3", "desk"))
    a.open(2)
    return Retirement(0, Counter(a.node, a.generation, a.n), a.replication_id, "0", 0)


def _sweep(a: Hand, b: Hand) -> Step:
    a.apply(login("u", "s1"), login("w", "s2"), login("x", "s3"))
    b.apply(login("w", "s4", "desk"), hold("x", "s5"))
    b.fence("a")
    return Sweep(0, Counter(b.node, b.generation, b.n), b.replication_id, "a", "0", 10**9, 0)


def _fence(a: Hand, b: Hand) -> Step:
    return Fencing(0, Counter(b.node, b.generation, b.n), b.replication_id, a.node)


def _compare(a: Hand, _: Hand) -> Step:
    a.apply(login("u", "s1"))
    return Compare(0, Counter(a.node, a.generation, a.n), a.replication_id, "0", 10, (), ())


def _forget(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1"), end("u", "s1"), login("w", "s2"))
    return SHAPE.operator_call("forget", 0, ["u", "w"])


RULES: Final = msgpack.packb(
    [["mail", -1000, [], ""], ["call", 60_000, [], ""]]
)  # one is due at once: the clock stands


def _turn(a: Hand, _: Hand) -> Call:
    a.apply(login("u", "s1"), end("u", "s1"), login("w", "s2"), end("w", "s2"))
    turn = keys.run_call(SHAPE.keys, 0, "s", RULES, has_begun=True, kept=1000)
    a.store.evaluate([turn])
    a.apply(login("u", "s3"), login("v", "s4"), end("v", "s4"))
    return turn


SCENES: Final = (
    Scene("follow-ups: turn", _turn),
    Scene("apply", _apply),
    Scene("apply: ends", _apply_ends),
    Scene("apply: opening", _open),
    Scene("retire", _retire),
    Scene("sweep", _sweep),
    Scene("fence", _fence),
    Scene("compare", _compare),
    Scene("forget", _forget),
)


def _forget_texts() -> None:
    script_runner.source.cache_clear()
    script_runner.digest.cache_clear()


@pytest.fixture
def standing_clock() -> Iterator[None]:
    texts = {name: text.replace("redis.call('TIME')", CLOCK) for name, text in script_runner._TEXTS.items()}
    with mock.patch.dict(script_runner._TEXTS, texts):
        _forget_texts()
        yield
    _forget_texts()


def run(server: Server, call: Call, stop: int) -> bool:
    """Run a call, stopped before its `stop`-th command; return whether it came to its end."""
    text = STOPS % stop + script_runner.source(call.script)
    client: Any = server.client
    try:
        client.eval(text, len(call.keys), *call.keys, *call.arguments)
    except ResponseError as error:
        if "stopped" not in str(error):
            raise
        return False
    return True


def contents(server: Server) -> dict[bytes, Any]:
    """Return all keys with their values, and whether they expire."""
    client: Any = server.client
    readers: dict[bytes, Any] = {
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"string": client.get,
    }
    readers[b"stream"] = lambda key: [
        (None if key == SHAPE.keys.followups(0).encode() else entry, fields)  # Redis gives these their ids
        for entry, fields in client.xrange(key)
    ]
    return {key: (readers[client.type(key)](key), client.pttl(key) > 0) for key in client.keys("*")}


def prepared(server: Server, store: RedisStore, scene: Scene) -> Call:
    server.client.flushall()
    a, b = Hand(store, "a"), Hand(store, "b")
    a.open()
    b.open()
    step = scene.act(a, b)
    return step if isinstance(step, Call) else SHAPE.call(step)


def settle(server: Server, call: Call) -> None:
    """Repeat a call until it has nothing more to do: what a run has planned, another one delivers."""
    for _ in range(3):
        assert run(server, call, 0)


def tried(server: Server, scene: Scene) -> tuple[int, list[str]]:
    """Try every place to stop in; return their number, and what did not hold."""
    store = RedisStore(server.url, SHAPE)
    broken: list[str] = []
    whole = prepared(server, store, scene)
    before = contents(server)
    settle(server, whole)
    after = contents(server)
    for stop in range(1, COMMANDS_MAX):
        call = prepared(server, store, scene)
        if run(server, call, stop):
            break
        left = contents(server)
        nothing = left == before
        settle(server, call)
        held = contents(server) == after
        print(f"{scene.name}, command {stop}: {'nothing written' if nothing else 'completed'}, held {held}")
        if not held:
            broken.append(f"{scene.name}, command {stop}")
    store.close()
    return stop - 1, broken


def tried_all(binary: str) -> list[str]:
    cells = 0
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ps-") as folder:
        server = Server(binary, Path(folder))
        try:
            for scene in SCENES:
                count, failed = tried(server, scene)
                cells, broken = cells + count, broken + failed
        finally:
            server.close()
    print(f"{cells} cells, {cells - len(broken)} held")
    return broken


@pytest.mark.usefixtures("standing_clock")
def test_a_stopped_script_is_completed_once() -> None:
    assert tried_all(redis_binary()) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("standing_clock")
def test_a_stopped_script_is_completed_once_on_redis_7() -> None:
    assert tried_all("redis-server") == []
