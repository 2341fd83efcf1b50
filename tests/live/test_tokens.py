"""`presence serve` with keys: who comes in, whatever the address, and what happens when keys change."""

import os
import signal
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import protocol
from presence.embedded import EmbeddedRedis
from protocol import Code, Kind, Packet
from tests.credentials import SECRET, token, write_keys
from tests.live.server_process import running_server, wait_for
from tests.live.test_refusing import refused
from tests.live.test_reload import PATIENCE_S, times

OTHER = bytes(reversed(SECRET))


class Device:
    """A connection that logs in with a token."""

    def __init__(self, address: tuple[str, int], uid: str | None, proof: str | None) -> None:
        self._sock = socket.create_connection(address, timeout=PATIENCE_S)
        self._decoder = protocol.Decoder()
        known = {name: value for name, value in (("uid", uid), ("token", proof)) if value is not None}
        self._sock.sendall(protocol.encode(Packet(Kind.LOGIN, 1, known)))

    def answer(self) -> Packet:
        while (found := self._decoder.next()) is None:
            data = self._sock.recv(4096)
            assert data, "closed without an answer"
            self._decoder.feed(data)
        return found

    def ask(self, packet: Packet) -> Packet:
        self._sock.sendall(protocol.encode(packet))
        return self.answer()

    def beat(self) -> Packet:
        return self.ask(protocol.keepalive(2))

    def close(self) -> None:
        self._sock.close()


def answered(address: tuple[str, int], uid: str | None, proof: str | None) -> int:
    """Return the kind of the answer to a login, or the code of the error."""
    with closing(Device(address, uid, proof)) as device:
        answer = device.answer()
    return answer.payload["code"] if answer.kind == Kind.ERROR else answer.kind


def test_keys_change_under_way_and_drop_nobody(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    flags = ("--redis", redis_server.url, "--host", "0.0.0.0", "--token-keys", str(path), "--workers", "2")
    with running_server(*flags) as server, ExitStack() as stack:
        address = ("127.0.0.1", server.address[1])
        ann = stack.enter_context(closing(Device(address, None, token("ann"))))
        assert ann.answer().kind == Kind.OK
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
    bad = tmp_path / "keys.json"
    bad.write_text("{")
    away = tmp_path / "cert.pem"
    said = refused({"PRESENCE_TOKEN_KEYS": str(bad), "PRESENCE_TLS_CERT": str(away)}).splitlines()
    assert [line.partition(f": {file}: ")[0] for line, file in zip(said, (bad, away), strict=True)] == [
        "presence: token_keys",
        "presence: tls_cert",
    ]
