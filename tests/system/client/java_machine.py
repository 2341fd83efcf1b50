"""The machine of the Java client in a process of its own, with the methods that the model drives."""

import json
import math
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from presence import client, protocol
from presence.client import (
    Connected,
    Disconnected,
    Goodbye,
    PresenceChanged,
    PresenceError,
    State,
    UserState,
    WatchEnded,
)
from presence.client.pending import Effects, RequestResult
from presence.client.pushes import Push
from presence.protocol import Packet
from tests.system.protocol.java_package import JAVA, class_path

Shown = Mapping[str, Any]


def error(name: str) -> PresenceError:
    """Return an error of a class; what else it says stays in the process."""
    kind = getattr(client, name)
    made = kind.__new__(kind)
    assert isinstance(made, PresenceError)
    return made


def push(shown: Shown) -> Push:
    """Return a push of the Java client as one of this one's."""
    match shown["type"]:
        case "Connected":
            times = shown["idleTimeoutMs"] / 1000, shown["keepaliveMs"] / 1000
            return Connected(shown["session"], *times, shown["timeMs"], shown["again"])
        case "Disconnected":
            return Disconnected(shown["reason"], shown["message"], shown["retryInMs"] / 1000, shown["code"])
        case "Goodbye":
            reconnect, message = shown["reconnect"], shown["message"]
            return Goodbye(shown["code"], shown["reason"], reconnect, shown["retryAfterMs"], message)
        case "WatchEnded":
            return WatchEnded(tuple(shown["uids"]), shown["code"], shown["reason"], shown["message"])
        case "PresenceChanged":
            state = UserState(shown["state"]["status"], id=shown["state"]["id"])
            return PresenceChanged(shown["uid"], state, shown["reason"])
    raise AssertionError(shown)


def effects(shown: Sequence[Shown]) -> Effects:
    made: Effects = []
    for each in shown:
        if each["type"] == "RequestResult":
            result = each.get("answer", {}) if each["error"] is None else error(each["error"])
            made.append(RequestResult(each["id"], result))
        else:
            made.append(push(each))
    return made


class JavaMachine:
    """A machine of the Java client.

    Attributes:
        state, connected, wants_token, deadline, has_outgoing: as of `ClientMachine`, after the last call.
        error: its text.
    """

    def __init__(self, process: "JavaProcess", chance: Callable[[], float]) -> None:
        self._process = process
        self._chance = chance
        self.state = State.CONNECTING
        self.connected = self.wants_token = self.has_outgoing = False
        self.deadline = math.inf
        self.error: str | None = None
        self.reconnect_policy = self.persistent_state = self.watches = self
        self.logins = 0
        self.joined: list[str] | None = None
        self._watched: dict[str, UserState] = {}

    def begin(self, now: float, *, persistent: bool, fetches: bool) -> None:
        self._call("begin", now, persistent, fetches)

    def _call(self, method: str, now: float, *arguments: object) -> Any:
        """Call a method; return the whole answer."""
        answer = self._process.ask([method, self._chance(), now, *arguments])
        self.state = State(answer["state"])
        self.connected, self.wants_token = answer["connected"], answer["wants_token"]
        self.deadline = math.inf if answer["deadline"] is None else answer["deadline"]
        self.has_outgoing, self.error = answer["has_outgoing"], answer["error"]
        self.logins, self.joined = answer["logins"], answer["joined"]
        self._watched = {uid: UserState(status) for uid, status in answer["watched"].items()}
        if "raised" in answer:
            raise error(answer["raised"])
        return answer

    def _effects(self, method: str, now: float, *arguments: object) -> Effects:
        return effects(self._call(method, now, *arguments)["effects"])

    def states(self) -> dict[str, UserState]:
        return self._watched

    # What `ClientMachine` has, too

    def established(self, now: float) -> None:
        self._call("established", now)

    def tick(self, now: float) -> Effects:
        return self._effects("tick", now)

    def token_fetched(self, token: str | Exception, now: float) -> Effects:
        return self._effects("token_fetched", now, token if isinstance(token, str) else None)

    def received(self, data: bytes, now: float) -> Effects:
        return self._effects("received", now, data.hex())

    def disconnected(self, message: str, now: float) -> Effects:
        return self._effects("disconnected", now, message)

    def take_outgoing(self) -> bytes:
        return bytes.fromhex(self._call("take_outgoing", 0.0)["value"]) if self.has_outgoing else b""

    def written(self, now: float) -> None:
        self._call("written", now)

    def request(self, packet: Packet, timeout_s: float, now: float, *, retries: bool = False) -> int:
        id: int = self._call("request", now, protocol.encode(packet).hex(), timeout_s, retries)["value"]
        return id

    def watch_nowait(self, uids: Sequence[str], now: float) -> None:
        self._call("watch_nowait", now, uids)

    def watch_roster_nowait(self, now: float) -> None:
        self._call("watch_roster_nowait", now)

    def unwatch(self, uids: Sequence[str] | None, timeout_s: float, now: float) -> int | None:
        id: int | None = self._call("unwatch", now, uids, timeout_s)["value"]
        return id

    def unwatch_roster(self, timeout_s: float, now: float) -> int | None:
        id: int | None = self._call("unwatch_roster", now, timeout_s)["value"]
        return id

    def abandon_request(self, id: int) -> Effects:
        return self._effects("abandon_request", 0.0, id)

    def log_out(self, reason: str | None, now: float) -> int:
        id: int = self._call("log_out", now, reason)["value"]
        return id

    def close(self) -> Effects:
        return self._effects("close", 0.0)


class JavaProcess:
    """A built client as a process, with one machine after the other.

    Args:
        before: folders whose classes stand in for those of the client.
    """

    def __init__(self, client_folder: Path, *before: Path) -> None:
        path = ":".join([*map(str, before), class_path(client_folder)])
        command = [*JAVA, "-cp", path, "presence.client.MachineDriver"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, call: Sequence[object]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process has ended in {call[0]}"
        return json.loads(line)

    def new_machine(
        self, now: float, *, persistent: bool, fetches: bool, chance: Callable[[], float]
    ) -> JavaMachine:
        machine = JavaMachine(self, chance)
        machine.begin(now, persistent=persistent, fetches=fetches)
        return machine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            pass
