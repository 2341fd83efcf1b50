"""`presence serve` with token keys: who can log in, from any address, and changes of keys."""

import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path

from presence.protocol import Code, Kind, Packet
from presence.store.embedded import EmbeddedRedis
from tests.server.test_serve import failed_start
from tests.support.credentials import SECRET, token, write_keys
from tests.support.phone import Phone
from tests.support.server_process import running_server
from tests.support.waiting import wait_for

OTHER = bytes(reversed(SECRET))


def login(uid: str | None, proof: str | None) -> Packet:
    known = {name: value for name, value in (("uid", uid), ("token", proof)) if value is not None}
    return Packet(Kind.LOGIN, 1, known)


def answered(address: tuple[str, int], uid: str | None, proof: str | None) -> int:
    """Return the kind of the answer to a login, or the code of the error."""
    with closing(Phone(address)) as phone:
        answer = phone.ask(login(uid, proof))
    return answer.payload["code"] if answer.kind == Kind.ERROR else answer.kind


def test_keys_change_at_run_time_without_dropping_clients(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    flags = ("--redis", redis_server.url, "--host", "0.0.0.0", "--token-keys", str(path), "--workers", "2")
    with running_server(*flags) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.address[1])
        ann = stack.enter_context(closing(Phone(address)))
        assert ann.ask(login(None, token("ann"))).kind == Kind.OK
        assert answered(address, "eve", token("ann")) == Code.AUTH_FAILED
        assert answered(address, "eve", None) == Code.AUTH_FAILED
        write_keys(path, {"b": OTHER})
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: len(server.logged("token keys renewed")) == 2)
        assert answered(address, "bob", token("bob")) == Code.AUTH_FAILED
        assert answered(address, "bob", token("bob", "b", OTHER)) == Kind.OK
        assert ann.send_keepalive().kind == Kind.OK
        path.write_text("{")
        server.process.send_signal(signal.SIGUSR2)
        refused_to_renew = "rolling restart aborted, successor not ready"
        wait_for(lambda: server.logged(refused_to_renew))
        assert ann.send_keepalive().kind == Kind.OK
    assert sum(line["tokens"]["granted"] for line in server.logged("stopped")) == 2


def test_unusable_files_refuse_to_start_and_are_reported(tmp_path: Path) -> None:
    bad, away, short = tmp_path / "keys.json", tmp_path / "cert.pem", tmp_path / "operators"
    bad.write_text("{")
    short.write_text("read grafana short\n")
    short.chmod(0o600)
    files = {"token-keys": bad, "tls-cert": away, "admin-tokens": short}
    flags = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    status, output, _ = failed_start("--admin", "127.0.0.1:0", *flags)
    assert status == 2
    for name, file in files.items():
        assert f"{name.replace('-', '_')}: {file}: " in output
