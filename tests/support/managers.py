"""A service manager as far as it listens: the Unix socket of systemd's notify protocol."""

import secrets
import socket
import time
from pathlib import Path
from typing import Self


class Manager:
    """Receives the notifications of services; `variable` is for `NOTIFY_SOCKET`, no file without a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.notify_socket = f"@presence-{secrets.token_hex(8)}" if folder is None else str(folder / "notify")
        self.messages: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.notify_socket[1:]}" if folder is None else self.notify_socket)

    def receive(self, timeout_s: float = 20.0) -> dict[str, str]:
        self._socket.settimeout(timeout_s)
        lines = self._socket.recv(4096).decode().splitlines()
        message = dict(line.split("=", 1) for line in lines)
        self.messages.append(message)
        return message

    def wait_for(self, name: str, timeout_s: float = 20.0) -> dict[str, str]:
        """Return the next message that has a line of this name."""
        end = time.monotonic() + timeout_s
        while name not in (message := self.receive(max(0.01, end - time.monotonic()))):
            pass
        return message

    def is_silent(self) -> bool:
        """Whether no message is waiting."""
        self._socket.settimeout(0)
        try:
            self.receive(0)
        except BlockingIOError:
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
