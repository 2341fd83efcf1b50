"""`presence serve` with keys: who comes in, whatever the address, and what happens when keys change."""

import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path

from presence.embedded import EmbeddedRedis
from protocol import Code, Kind, Packet
from tests.credentials import SECRET, token, write_keys
from tests.live.phone import Phone
from tests.live.server_process import running_server, wait_for
from tests.live.test_refusing import refused
from tests.live.test_reload import PATIENCE_S, times

OTHER = bytes(reversed(SECRET))


def logged_in(address: tuple[str, int], uid: str | None, proof: str | None) -> tuple[Phone, Packet]:
    """Send a login; return the connection, and what is answered."""
    known = {name: value for name, value in (("uid", uid), ("token", proof)) if value is not None}
    phone = Phone(address)
    return phone, phone.ask(Packet(Kind.LOGIN, 1, known))


def answered(address: tuple[str, int], uid: str | None, proof: str | None) -> int:
    """Return the kind of the answer to a login, or the code of the error."""
    phone, answer = logged_in(address, uid, proof)
    phone.close()
    return answer.payload["code"] if answer.kind == Kind.ERROR else answer.kind


def test_keys_change_under_way_and_drop_nobody(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    flags = ("--redis", redis_server.url, "--host", "0.0.0.0", "--token-keys", str(path), "--workers", "2")
    with running_server(*flags) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.address[1])
        ann, answer = logged_in(address, None, token("ann"))
        stack.enter_context(closing(ann))
        assert answer.kind == Kind.OK
        assert answered(address, "eve", token("ann")) == Code.AUTH_FAILED
        assert answered(address, "eve", None) == Code.AUTH_FAILED
        write_keys(path, {"b": OTHER})
        os.kill(server.process.pid, signal.SIGHUP)
        wait_for(lambda: times(server, "token keys renewed") == 2, PATIENCE_S)
        assert answered(address, "bob", token("bob")) == Code.AUTH_FAILED
        assert answered(address, "bob", token("bob", "b", OTHER)) == Kind.OK
        assert ann.beat().kind == Kind.OK
        path.write_text("{")
        server.process.send_signal(signal.SIGUSR2)
        refused_to_renew = "no more workers are renewed: a successor did not come to work"
        wait_for(lambda: times(server, refused_to_renew) == 1, PATIENCE_S)
        assert ann.beat().kind == Kind.OK
    assert sum(line["tokens"]["granted"] for line in server.lines if line["event"] == "stopped") == 2


def test_files_that_cannot_be_used_refuse_to_start_and_are_named(tmp_path: Path) -> None:
    bad, away, short = tmp_path / "keys.json", tmp_path / "cert.pem", tmp_path / "operators"
    bad.write_text("{")
    short.write_text("read grafana short\n")
    short.chmod(0o600)
    files = {"token_keys": bad, "tls_cert": away, "admin_tokens": short}
    said = refused({f"PRESENCE_{name.upper()}": str(file) for name, file in files.items()}).splitlines()
    told = [line.partition(f": {file}: ")[0] for line, file in zip(said, files.values(), strict=True)]
    assert told == [f"presence: {name}" for name in files]
