"""Loading of script sources, and the connections of their calls."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import msgpack
import pytest

from presence.common.errors import StoreError, StoreUnavailable
from presence.store import script_runner
from presence.store.keys import Keys
from presence.store.script_runner import Call, Scripting
from tests.store.servers import Server
from tests.support.answers import CLOSED, AnsweringProxy

CALLS = 30
ROUNDS = 3
MAX_BYTES_PER_CALL = 8_192  # a connection's buffer has 64 KiB

FOLDER = Path(script_runner.__file__).parent / "scripts"


def test_scripts_are_read_on_import_and_not_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("an upgrade may have changed the files since")

    parts = [f"lib/{name}" for name in ("effects", "shard", "peer_traces", "record_cache", "session_index")]
    *shared, forget, lease = ((FOLDER / f"{name}.lua").read_text() for name in (*parts, "forget", "lease"))
    monkeypatch.setattr(Path, "read_text", refuse)
    text = script_runner.source.__wrapped__("forget")
    assert [text.count(part) for part in (*shared, forget)] == [1] * 6
    assert script_runner.source.__wrapped__("lease") == lease


@pytest.mark.parametrize(
    "answer", ["READONLY", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK", "TRYAGAIN", CLOSED]
)
def test_refused_calls_keep_no_memory(server: Server, answer: str) -> None:
    with AnsweringProxy(server.path) as proxy, closing(Scripting(proxy.url)) as runner, no_collections():
        call = Call("lease", Keys().lease_keys, ["a", 1, 10_000, "{}", msgpack.packb([])])
        runner.one(call)
        proxy.answer(answer)
        refuse(runner, call, 10)
        kept = [tracemalloc.get_traced_memory()[0]]
        for _ in range(ROUNDS):
            refuse(runner, call, CALLS)
            kept.append(tracemalloc.get_traced_memory()[0])
        assert proxy.answered >= ROUNDS * CALLS
        # The least of all: the proxy's thread is traced, too, and has buffers for a while.
        assert min(after - before for before, after in pairwise(kept)) / CALLS < MAX_BYTES_PER_CALL
        proxy.heal()
        runner.one(call)


def test_each_connection_has_a_number_because_cursors_of_scans_mean_something_there_only(
    server: Server,
) -> None:
    with closing(Scripting(server.url)) as runner:
        assert runner.connection_number("k") is None
        ping = [("ECHO", "x")]
        runner.commands("k", ping)
        first = runner.connection_number("k")
        runner.commands("k", ping)
        assert runner.connection_number("k") == first is not None
        server.client.client_kill_filter(skipme=True)
        with suppress(StoreUnavailable):
            runner.commands("k", ping)
        runner.commands("k", ping)
        assert runner.connection_number("k") not in {None, first}


def refuse(runner: Scripting, call: Call, times: int) -> None:
    for _ in range(times):
        (answer,) = runner.evaluate([call])
        assert isinstance(answer, StoreUnavailable | StoreError)


@contextmanager
def no_collections() -> Iterator[None]:
    """Trace memory while no garbage is collected: servers collect rarely, because they hold many sessions."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()
