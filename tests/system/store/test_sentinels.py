"""Sentinels that want TLS and passwords, one of which hangs: the primary is replaced under a server."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from loadtest.redis_sentinel import HOST, Secrets, SentinelSetup
from presence.client import PresenceChanged, connect_blocking
from presence.config.settings import Settings
from presence.doctor.redis_checks import sentinels
from presence.doctor.redis_facts import gather
from presence.doctor.results import CheckResult, CheckStatus
from presence.reader import PresenceReader
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

T = 3.0  # idle time-out, seconds


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[SentinelSetup]:
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(tmp_path / "ca")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "server.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "server.key")
    binary = shutil.which("redis-server")  # the embedded one does not speak TLS
    with SentinelSetup(binary=binary, secrets=Secrets(tmp_path)) as setup:
        yield setup


def check(setup: SentinelSetup) -> CheckResult:
    (result,) = sentinels(gather(Settings(), setup.url))
    return result


@pytest.mark.needs("redis-server")
def test_watches_and_reads_go_on_after_a_failover(setup: SentinelSetup) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(PreloadedServer("--redis", setup.url, "--idle-timeout", f"{T:g}"))
        reader = stack.enter_context(PresenceReader(setup.url))
        ann = stack.enter_context(connect_blocking(*server.address, uid="ann"))
        bob = stack.enter_context(connect_blocking(*server.address, uid="bob"))
        wait_for(lambda: reader.state("bob")["status"] == "online", 5)
        assert ann.watch(["bob", "eve"])["bob"].status == "online"
        assert check(setup).status is CheckStatus.OK

        setup.sentinels[0].freeze()
        result = check(setup)
        assert result.status is CheckStatus.WARN
        assert f"{HOST}:{setup.sentinels[0].port}: " in result.have

        setup.primary.kill()
        bob.disconnect()
        eve = stack.enter_context(connect_blocking(*server.address, uid="eve"))
        changes: dict[str, str] = {}
        while len(changes) < 2:
            push = ann.receive(timeout=20)
            if isinstance(push, PresenceChanged):
                changes[push.uid] = push.state.status
        assert changes == {"eve": "online", "bob": "offline"}
        states = reader.states(["ann", "bob", "eve"])
        assert [each["status"] for each in states.values()] == ["online", "offline", "online"]
        eve.disconnect()
