"""Loading of script sources, and the connections of their calls."""

import gc
import weakref
from pathlib import Path

import msgpack
import pytest

from presence.common.errors import StoreError, StoreUnavailable
from presence.store import script_runner
from presence.store.client import Redis, open_client
from presence.store.keys import Keys
from presence.store.script_runner import Call, Scripting
from tests.store.servers import Server
from tests.support.answers import CLOSED, AnsweringProxy

FOLDER = Path(script_runner.__file__).parent / "scripts"


def test_scripts_are_read_on_import_and_not_when_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("an upgrade may have changed the files since")

    shard, records, forget, lease = (
        (FOLDER / f"{name}.lua").read_text() for name in ("lib/shard", "lib/record_cache", "forget", "lease")
    )
    monkeypatch.setattr(Path, "read_text", refuse)
    assert script_runner.source.__wrapped__("forget") == shard + records + forget
    assert script_runner.source.__wrapped__("lease") == lease


@pytest.mark.parametrize(
    "answer", ["READONLY", "CLUSTERDOWN", "MASTERDOWN", "MOVED", "ASK", "TRYAGAIN", CLOSED]
)
def test_refused_calls_keep_no_clients(server: Server, answer: str) -> None:
    made: list[weakref.ref[Redis]] = []

    def connect(url: str) -> Redis:
        client = open_client(url)
        made.append(weakref.ref(client))
        return client

    with AnsweringProxy(server.path) as proxy:
        runner = Scripting(proxy.url, connect)
        call = Call("lease", Keys().lease_keys, ["a", 1, 10_000, "{}", msgpack.packb([])])
        runner.one(call)
        proxy.answer(answer)
        for _ in range(20):
            with pytest.raises((StoreUnavailable, StoreError)):
                runner.one(call)
        assert proxy.answered >= 20
        gc.collect()
        assert sum(client() is not None for client in made) <= 1
        proxy.heal()
        runner.one(call)
        runner.close()
