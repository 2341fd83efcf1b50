"""Who may import whom: the rooms of the design as data, and nobody in a circle."""

import ast
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import loadtest
import presence
import protocol

SOCKETS = {"socket", "select", "selectors", "ssl"}
LOOPS = {"trio", "asyncio", "threading"}
EDGES = {
    "presence.server",
    "presence.process",
    "presence.supervisor",
    "presence.cli",
    "presence.commands",
}
HTTP = {"starlette", "h11", "prometheus_client"}
STORE = {"redis", "presence.store"}
TRANSPORTS = {"presence.transports"}
SHELL = {
    "presence.relay",
    "presence.cluster",
    "presence.observation",
    "presence.shard_writer",
    "presence.outbox",
}


class Room(NamedTuple):
    """Modules (a name stands for what is below it too), and what none of them may import."""

    names: set[str]
    never: set[str]


ROOMS = [
    Room({"protocol"}, {"presence", "redis", "structlog", "time", *SOCKETS, *LOOPS}),
    Room({"presence.wheel"}, {"presence", "protocol", "redis", "structlog", "time", *SOCKETS, *LOOPS}),
    Room({"presence.changes"}, {"presence", "protocol", "redis", "time", *SOCKETS, *LOOPS}),
    Room(
        {
            "presence.registry",
            "presence.session",
            "presence.core",
            "presence.core_statistics",
            "presence.endings",
            "presence.vouching",
            "presence.profiles",
            "presence.flapping",
            "presence.admission",
            "presence.buckets",
            "presence.packet_rate",
            "presence.requests",
            "presence.outcome",
            "presence.meta",
        },
        {"time", "structlog", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.ticker", "presence.ticks", "presence.clock"},
        {"presence.core", "presence.session", *SOCKETS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room({"presence.transports"}, {*STORE, *SHELL, *EDGES}),
    Room({"presence.transports.proxy_v2"}, {"presence", "time", "structlog", *SOCKETS, *LOOPS}),
    Room(
        {"presence.relay", "presence.comparison", "presence.cluster"},
        {
            "redis",
            "trio",
            "presence.core",
            "presence.session",
            "presence.registry",
            *SOCKETS,
            *TRANSPORTS,
            *EDGES,
        },
    ),
    Room(
        {
            "presence.outbox",
            "presence.shard_writer",
            "presence.settling",
            "presence.backlog",
            "presence.observation",
            "presence.transitions",
            "presence.relay_statistics",
        },
        {"redis", "time", "presence.runtime", "structlog", *SOCKETS, *LOOPS, *TRANSPORTS, *EDGES},
    ),
    # Figures: what counts is handed what it counts; a sample is made of parts, wherever they come from.
    Room(
        {"presence.histograms", "presence.samples"},
        {"redis", "time", "structlog", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    # Watches: what is known and who is told is pure; the tasks around it know a channel, and no Redis.
    Room(
        {f"presence.watching.{name}" for name in ("states", "watches", "waiting", "view", "channel")},
        {"redis", "structlog", "time", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.watching", "presence.desk"},
        {"redis", "time", "presence.core", "presence.session", *SOCKETS, *TRANSPORTS, *SHELL, *EDGES},
    ),
    # Messages: who waits and who is written to is pure; the courier knows what Redis says, not how.
    Room(
        {f"presence.messaging.{name}" for name in ("letters", "waiting")},
        {"redis", "structlog", "time", "presence.runtime", *SOCKETS, *LOOPS, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.messaging"},
        {"redis", "time", "presence.core", "presence.session", *SOCKETS, *TRANSPORTS, *SHELL, *EDGES},
    ),
    # Tokens: what one says is pure; keys measure what they cost, and a file is read.
    Room(
        {f"presence.auth.{name}" for name in ("verdicts", "expiries", "tokens", "gate")},
        {"time", "structlog", "redis", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.auth"},
        {
            "redis",
            "presence.core",
            "presence.session",
            "presence.registry",
            "presence.node",
            *SOCKETS,
            *STORE,
            *TRANSPORTS,
            *SHELL,
            *EDGES,
        },
    ),
    # What a simulation runs as `presence serve` does: whatever waits, waits in the runtime.
    Room({"presence.node"}, {"redis", "trio", *SOCKETS, *TRANSPORTS, *EDGES}),
    Room(
        {"presence.store"},
        {"presence.core", "presence.session", "presence.registry", "presence.relay", *TRANSPORTS, *EDGES},
    ),
    # Whoever acts on events is no server.
    Room(
        {"presence.subscriber", "presence.reader"},
        {
            "presence.core",
            "presence.session",
            "presence.registry",
            "presence.ticker",
            "presence.store.redis_store",
            "structlog",
            *SOCKETS,
            *TRANSPORTS,
            *SHELL,
            *EDGES,
        },
    ),
    # The timer inside the event loop: a wheel that knows nothing, and a task around it that knows no Redis.
    Room(
        {
            "presence.timers.levels",
            "presence.timers.rings",
            "presence.timers.moments",
            "presence.timers.measures",
        },
        {"redis", "structlog", "time", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {
            "presence.timers.service",
            "presence.timers.callbacks",
            "presence.timers.handles",
            "presence.timers.inbox",
        },
        {
            "presence.core",
            "presence.session",
            "presence.registry",
            *SOCKETS,
            *STORE,
            *TRANSPORTS,
            *SHELL,
            *EDGES,
        },
    ),
    # A timer in Redis is no server either, and waits for nothing; who listens beside it does so in the store.
    Room(
        {"presence.timers.redis_wheel", "presence.timers.expiry_timer"},
        {
            "redis",
            "presence.core",
            "presence.session",
            "presence.registry",
            "presence.ticker",
            "presence.subscriber",
            "structlog",
            *SOCKETS,
            *LOOPS,
            *TRANSPORTS,
            *SHELL,
            *EDGES,
        },
    ),
    # Follow-ups know what Redis has of users, and nothing of who writes it.
    Room(
        {"presence.rules", "presence.followups"},
        {
            "redis",
            "presence.core",
            "presence.session",
            "presence.registry",
            "presence.wheel",
            "presence.ticker",
            "presence.node",
            "presence.store.redis_store",
            *SOCKETS,
            *TRANSPORTS,
            *SHELL,
            *EDGES,
        },
    ),
    Room(
        {
            "loadtest.facts",
            "loadtest.judge",
            "loadtest.checker",
            *(f"loadtest.chaos.{name}" for name in ("plan", "truth", "bounds", "reasons", "judge")),
            *(
                f"loadtest.channel.{name}"
                for name in ("entries", "watch_judge", "message_judge", "flapping_judge")
            ),
            "loadtest.security.samples",
        },
        {"presence", "time", "gevent", "locust", *SOCKETS, *LOOPS},
    ),
    # Timers in Redis know the store's calls and keys, and nothing of who serves.
    Room(
        {f"presence.timers.{name}" for name in ("handing", "packing", "delay_queue", "ring_timer")},
        {
            "presence.core",
            "presence.session",
            "presence.registry",
            "presence.wheel",
            "presence.store.redis_store",
            "structlog",
            "time",
            *SOCKETS,
            *LOOPS,
            *TRANSPORTS,
            *SHELL,
            *EDGES,
        },
    ),
    # What is asked before anything is loaded: settings, their contradictions, what they leave open.
    Room(
        {"presence.contradictions", "presence.exposure", "presence.networks"},
        {"time", "structlog", "presence.auth", "redis", *SOCKETS, *LOOPS, *TRANSPORTS, *SHELL, *EDGES},
    ),
    # What the doctor gathers from Redis is judged by functions that ask nobody.
    Room(
        {"presence.doctor.findings", "presence.doctor.redis_checks"},
        {"redis", "time", "structlog", "pathlib", "presence.store.access", *SOCKETS, *LOOPS, *SHELL, *EDGES},
    ),
    # Rights are looked at by whoever starts, once; sockets that listen know nothing of who is served.
    Room({"presence.store.privileges"}, {"time", "structlog", *SOCKETS, *LOOPS, *TRANSPORTS, *SHELL, *EDGES}),
    # What operators are told of a user: what a node knows and what is said of it is pure, and no I/O below.
    Room(
        {
            "presence.standing",
            "presence.explaining",
            "presence.lately",
            "presence.reasons",
            "presence.notes",
        },
        {"time", "structlog", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.explanation", "presence.last_events"},
        {"presence.core", "presence.session", "presence.registry", *SOCKETS, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room({"presence.ports", "presence.credentials"}, {"presence.core", *STORE, *SHELL, *EDGES}),
    # A second decoder that shared anything with the first one would share its mistakes.
    Room(
        {"loadtest.fuzz.oracle", "loadtest.fuzz.oracle_schema"},
        {"protocol", "presence", "msgpack", "time", *SOCKETS, *LOOPS},
    ),
    Room({"loadtest.connection", "loadtest.device"}, {"presence", "gevent", "locust", *LOOPS}),
    # A client knows the protocol and nothing of the server; its rules know no clock and no socket either.
    Room(
        {"presence.client"},
        {"redis", "structlog", "presence.core", "presence.session", *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {
            f"presence.client.{name}"
            for name in ("errors", "pushes", "pacing", "session", "machine", "inbox", "lasting", "watches")
        }
        | {
            f"presence.client.{name}"
            for name in ("rewatching", "renewal", "connection", "returning", "states", "tokens")
        },
        {"time", *SOCKETS, *LOOPS},
    ),
    # Workers of timers serve nobody; what they hold, and how they pace themselves, knows no clock.
    Room(
        {f"presence.timers.{name}" for name in ("runner", "worker", "kinds", "examples")},
        {"redis", "presence.core", "presence.session", "presence.registry", *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {f"presence.timers.{name}" for name in ("held", "pacing", "handlers", "figures")},
        {"redis", "time", "structlog", "presence.store.scripting", *SOCKETS, *LOOPS, *TRANSPORTS, *EDGES},
    ),
    # Operators: who may do what, what is shown and what is kept of it know no Redis, no clock, no loop.
    Room(
        {f"presence.admin.{name}" for name in ("access", "token_file")},
        {"redis", "structlog", "time", "starlette", *SOCKETS, *LOOPS, *STORE, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.kicking", "presence.event_lines"},
        {"structlog", *SOCKETS, *LOOPS, *TRANSPORTS, *SHELL, *EDGES},
    ),
    Room(
        {"presence.admin"},
        {"redis", "presence.core", "presence.session", "presence.node", *TRANSPORTS, *SHELL},
    ),
]
# Direct and by way of others: what a process that only loads these modules must not load.
NOWHERE_BELOW = [
    Room(
        {"presence.registry", "presence.session", "presence.core", "presence.requests"},
        {"redis", *SOCKETS, *LOOPS},
    ),
    # Without keys for tokens a server loads nothing that checks them.
    Room(
        {"presence.registry", "presence.session", "presence.core", "presence.node"},
        {"jwt", "cryptography", "presence.auth.keys"},
    ),
    # Whoever serves operators does so in a process of its own.
    Room({"presence.server", "presence.process"}, {"presence.operators", *HTTP}),
    Room({"presence.cli", "presence.operators", "presence.supervisor", "presence.demo"}, HTTP),
    Room({"presence.client.machine"}, {"time", *SOCKETS, *LOOPS}),
    Room({"presence.client.blocking"}, {"redis", "trio", "structlog"}),
    Room({"presence.client.trio_client"}, {"redis", "structlog", "presence.server"}),
    Room({"presence.transports"}, {"redis"}),
    # A worker has its settings from whoever started it, and draws nothing.
    Room({"presence.process"}, {"presence.config", "argparse", "tomllib", "rich"}),
    Room({"presence.subscriber.blocking", "presence.subscriber.group", "presence.reader"}, {"trio"}),
    Room({"presence.explanation"}, {"trio", "presence.core"}),
    Room({"presence.rules"}, {"redis", "trio", "structlog", "time"}),
    Room({f"presence.followups.{name}" for name in ("turning", "planned")}, {"trio"}),
    Room({"loadtest.locustfile"}, {"trio"}),  # gevent has patched what trio stands on
    Room({"loadtest.check", "loadtest.bench"}, {"gevent", "locust"}),
]
ONLY_REDIS_ROOM = "presence.store"
ONLY_HTTP_ROOM = "presence.admin"
KNOWS_EVERYBODY = "presence.server"


def _below(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(room + ".") for room in rooms)


def _imports(module: str, source: str, package: bool, modules: set[str]) -> set[str]:
    """Return the names of what a module imports; of a project's package, the submodules that it takes."""
    found = set()
    base = module.split(".") if package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = base[: len(base) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            inner = {f"{origin}.{alias.name}" for alias in node.names} & modules
            found |= inner or {origin}
            if len(inner) < len(node.names):
                found.add(origin)
    return found - {module}


@cache
def _sources() -> dict[str, tuple[str, bool]]:
    sources = {}
    for package in (presence, protocol, loadtest):
        assert package.__file__ is not None
        top = Path(package.__file__).parent
        for path in top.rglob("*.py"):
            parts = path.relative_to(top.parent).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            sources[name] = (path.read_text("utf-8"), is_package)
    return sources


def _graph(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    return {
        name: _imports(name, source, package, set(sources)) for name, (source, package) in sources.items()
    }


def _reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for name in graph.get(ahead.pop(), ()):
            if name not in seen:
                seen.add(name)
                ahead.append(name)
    return seen


def violations(graph: Mapping[str, set[str]]) -> list[str]:
    """Return every import that the rooms forbid, one line each."""
    wrong = []
    for name, imported in graph.items():
        for room in ROOMS:
            if _below(name, room.names):
                wrong += [f"{name} imports {each}" for each in imported if _below(each, room.never)]
        for room in NOWHERE_BELOW:
            if _below(name, room.names):
                wrong += [
                    f"{name} reaches {each}" for each in _reach(graph, name) if _below(each, room.never)
                ]
        if not _below(name, [ONLY_REDIS_ROOM]):
            wrong += [f"{name} imports {each}" for each in imported if _below(each, ["redis"])]
        if not _below(name, [ONLY_HTTP_ROOM]):
            wrong += [f"{name} imports {each}" for each in imported if _below(each, HTTP)]
        rooms = sum(any(_below(each, room) for each in imported) for room in (TRANSPORTS, {"presence.relay"}))
        if rooms == 2 and name != KNOWS_EVERYBODY:
            wrong.append(f"{name} knows both ends, as only {KNOWS_EVERYBODY} may")
    return wrong


@cache
def graph() -> dict[str, set[str]]:
    """Return who imports whom, as it is."""
    return _graph(_sources())


def planted(module: str, line: str) -> dict[str, set[str]]:
    """Return who imports whom with one line more in a module."""
    source, package = _sources()[module]
    return {**graph(), module: _imports(module, f"{source}\n{line}\n", package, {*graph()})}


def test_nobody_imports_what_its_room_must_not_know() -> None:
    assert violations(graph()) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert [name for name in graph() if name in _reach(graph(), name)] == []


def test_the_protocol_needs_msgpack_and_the_standard_library_only() -> None:
    outside = set().union(*(graph()[name] for name in graph() if _below(name, ["protocol"]))) - set(graph())
    assert {each.partition(".")[0] for each in outside} <= {*sys.stdlib_module_names, "msgpack"}


def test_every_room_is_inhabited() -> None:
    print(f"test_every_room_is_inhabited: {len(graph())} modules, {sum(map(len, graph().values()))} imports")
    for room in (*ROOMS, *NOWHERE_BELOW):
        for name in room.names:
            assert any(_below(each, [name]) for each in graph()), name


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("protocol.codec", "from presence import clock"),
        ("presence.wheel", "import protocol"),
        ("presence.core", "from trio import sleep"),
        ("presence.session", "import socket"),
        ("presence.relay", "from redis.exceptions import RedisError"),
        ("presence.transports.epoll", "from presence.store import keys"),
        ("presence.transports.stream", "from ..outbox import Outbox"),
        ("presence.transports.tcp", "def later() -> None:\n    import presence.relay"),
        ("presence.client.machine", "import time"),
        ("presence.client.blocking", "import trio"),
        ("presence.clock", "import redis"),
        ("presence.auth.tokens", "import time"),
        ("presence.auth.gate", "from presence.registry import Registry"),
        ("presence.session", "from presence.auth.tokens import parse"),
        ("presence.store.keys", "from presence.core import Core"),
        ("loadtest.locustfile", "import trio"),
        ("loadtest.judge", "import time"),
    ],
)
def test_a_planted_import_is_caught(module: str, line: str) -> None:
    assert any(each.startswith(module) for each in violations(planted(module, line)))


def test_an_import_by_way_of_another_module_is_caught() -> None:
    assert "presence.core reaches socket" in violations(planted("presence.clock", "import socket"))


def test_a_planted_circle_is_found() -> None:
    circle = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert [name for name in circle if name in _reach(circle, name)] == ["a", "b", "c"]
