"""Clients with the libraries, each language in a process of its own, and whether what they see is true.

They stay connected: faults end their connections, and they return by themselves, through a balancer that
leads each connection to a random address of the nodes. At rest each is online with the session on record, and
what it sees of its watched users and rooms is what Redis has.
"""

from __future__ import annotations

import contextlib
import json
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from loadtest.checker import id_order
from loadtest.room_members import Members, stored_members, stored_records
from loadtest.servers import wait_for
from presence.store.keys import Keys
from tests.support.proxy import Proxy
from tests.system.chaos.crowd import Address
from tests.system.protocol import java_package, node_package

HERE: Final = Path(__file__).parent
START_TIMEOUT_S: Final = 60.0  # until the clients of a process have their watches
ANSWER_TIMEOUT_S: Final = 30.0
LOGGED_CHARACTERS: Final = 1000  # of a program's log, in a report
STOP_TIMEOUT_S: Final = 30.0  # for the logouts
POLL_INTERVAL_S: Final = 0.2
STATUSES: Final = ("online", "away", "busy", "dnd")
USERS: Final = 20  # of the crowd that each client watches
FRIENDS: Final = 5  # the same, of the clients here
ITSELF: Final = "session"


class Language(NamedTuple):
    """A language with a library.

    Attributes:
        needs: programs.
        built_client: builds the library below a folder, and returns its own.
        command: builds our program for the library in a folder, and returns its command.
    """

    needs: Sequence[str]
    built_client: Callable[[Path], Path]
    command: Callable[[Path], Sequence[str]]


class Pair(NamedTuple):
    """A client, and a user or a room that it watches; or `ITSELF`."""

    uid: str
    watched: str


class Sight(NamedTuple):
    """What a client sees of a user or room, or its own session.

    Attributes:
        what: a status, the number of a room's members, or a session; None: none.
        id: of the event that led to it; None: not known, or none.
    """

    what: object
    id: str | None = None


Seen = Mapping[Pair, Sight]


class Untrue(NamedTuple):
    """A sight that is not so, in words.

    Attributes:
        is_lost: whether it goes back to an event that Redis has lost by returning to an earlier state, whose
            record is older. Until the user's next event no client can tell it from an outdated one.
    """

    text: str
    is_lost: bool = False


Differences = dict[Pair, Untrue]


def _typescript(client: Path) -> Sequence[str]:
    return "node", str(HERE / "library_clients.mjs"), str(client / "dist" / "src" / "index.js")


def _java(client: Path) -> Sequence[str]:
    path, folder = java_package.class_path(client), client / "target" / "chaos"
    subprocess.run(("javac", "-cp", path, "-d", folder, HERE / "LibraryClients.java"), check=True)
    return "java", "-XX:+UseSerialGC", "-cp", f"{path}:{folder}", "presence.client.LibraryClients"


def _python(backend: str) -> Language:
    command = sys.executable, "-m", "tests.system.chaos.library_clients", backend
    return Language((), lambda folder: folder, lambda _client: command)


LANGUAGES: Final[Mapping[str, Language]] = {
    "asyncio": _python("asyncio"),
    "trio": _python("trio"),
    "typescript": Language(("node", "npm"), node_package.built_client, _typescript),
    "java": Language(("java", "javac", "jar"), java_package.built_client, _java),
}


def missing_programs(languages: Iterable[str]) -> list[str]:
    """Return the programs that these languages need and that are not there."""
    needed = dict.fromkeys(program for each in languages for program in LANGUAGES[each].needs)
    return [program for program in needed if shutil.which(program) is None]


def build_programs(languages: Iterable[str], folder: Path) -> dict[str, Sequence[str]]:
    """Build the programs below a folder; return the command of each."""
    known = {name: LANGUAGES[name] for name in languages}
    return {name: each.command(each.built_client(folder / name)) for name, each in known.items()}


def differences(seen: Seen, stored: Mapping[str, object], sessions: Mapping[str, str]) -> Differences:
    """Return where clients do not see what Redis has.

    Args:
        stored: by user the status that others are shown, by room the number of members. What is not there
            is offline, or empty.
        sessions: of users, by uid.
    """
    found: Differences = {}
    for pair, (what, id) in seen.items():
        if pair.watched == ITSELF:
            wanted: object = sessions.get(pair.uid, "none")
        else:
            wanted = stored.get(pair.watched, 0 if isinstance(what, int) else "offline")
        if what != wanted:
            found[pair] = Untrue(f"{pair.uid} sees {pair.watched} as {what} by {id}, not {wanted}")
    return found


def stored_states(records: Mapping[str, Mapping[str, Any]], members: Members) -> dict[str, object]:
    """Return what clients are to see, by user and by room.

    Args:
        records: the states of users, by uid.
        members: of rooms, see `tests.system.chaos.rooms`.
    """
    shown = {uid: "offline" if "invisible" in state else state["status"] for uid, state in records.items()}
    return shown | {room: sum(each != "i" for each in found.values()) for room, found in members.items()}


def unseen(client_of: Callable[[str], Any], keys: Keys, seen: Seen) -> Differences:
    """Return where clients do not see what Redis has; see `differences`."""
    records = stored_records(client_of, keys)
    sessions = {uid: state["sessions"][0]["session"] for uid, state in records.items()}

    def is_lost(uid: str, id: str | None) -> bool:
        record, stream = records.get(uid), keys.events(keys.shard(uid))
        is_newer = id is not None and record is not None and id_order(id) > id_order(record["id"])
        return is_newer and not client_of(stream).xrange(stream, id, id)

    found = differences(seen, stored_states(records, stored_members(client_of, keys)), sessions)
    return {pair: each._replace(is_lost=is_lost(pair.watched, seen[pair].id)) for pair, each in found.items()}


class _Process:
    """The clients of one language.

    Args:
        clients: what each is given, see `Libraries`.

    Attributes:
        replaced: users whose clients have ended, see `library_clients.py`.
        failure: why it does not answer any more, or has not begun to; "": it does.
    """

    def __init__(self, name: str, command: Sequence[str], clients: Sequence[Mapping[str, object]]) -> None:
        self.uids = {str(each["uid"]) for each in clients}
        self.replaced: set[str] = set()
        self.failure = ""
        self._name = name
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._ask(json.dumps(clients), START_TIMEOUT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _ask(self, line: str, within_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._answers.get(timeout=within_s)
        except (BrokenPipeError, queue.Empty):
            answer = ""
        if not answer:
            self.failure = f"the clients in {self._name} do not answer: {self._logged()}"
            return {}
        views: dict[str, Any] = json.loads(answer)
        return views

    def views(self) -> dict[str, Any]:
        """Return what each client sees, by uid; empty after a failure."""
        views = {} if self.failure else self._ask("", ANSWER_TIMEOUT_S)
        self.replaced = set() if self.failure else self.uids - views.keys()
        return views

    def _logged(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-LOGGED_CHARACTERS:].strip()

    def stop(self) -> list[str]:
        """Let the clients log out; return what has failed since the start."""
        if self.failure:
            return [self.failure]
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            status = self._process.wait(STOP_TIMEOUT_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            status = self.kill()
        logged = self._logged()
        return [f"clients in {self._name}: status {status}, {logged}"] if status or logged else []

    def kill(self) -> int:
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        self.kill()
        self._reader.join()
        with contextlib.suppress(BrokenPipeError), self._errors, self._process:
            pass


class Libraries:
    """All clients with the libraries.

    Args:
        commands: of the programs, by language; see `build_programs`.
        addresses: of nodes, with and without proxies.
        count: clients of each language.
        strangers: users of the crowd; each client watches some of them.
        rooms: in some of which they are, and which they watch.

    Attributes:
        uids: of their users.
        statuses: by uid, the status of each.
        compared: how often what a client sees was compared.
        lost: how often it was an event that Redis has lost; see `Untrue`.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        addresses: Iterable[Address],
        count: int,
        strangers: Collection[str],
        rooms: Sequence[str],
    ) -> None:
        self.statuses = {
            f"{name}-{number}": STATUSES[number % len(STATUSES)]
            for name in commands
            for number in range(count)
        }
        self.uids = frozenset(self.statuses)
        self.compared = self.lost = 0
        self._commands, self._count = commands, count
        self._strangers, self._rooms = sorted(strangers), rooms
        self._processes: list[_Process] = []
        self._balancer = Proxy(("127.0.0.1", 0))
        self._balancer.retarget(*(each.address for each in addresses if not each.is_websocket))

    def log_in(self) -> None:
        """Start the programs; return when all clients have their watches. Raises RuntimeError."""
        host, port = self._balancer.address
        for name, command in self._commands.items():
            clients = [self._client(f"{name}-{number}", number) for number in range(self._count)]
            process = _Process(name, [*command, host, str(port)], clients)
            self._processes.append(process)
            if process.failure:
                raise RuntimeError(process.failure)

    def _client(self, uid: str, number: int) -> dict[str, object]:
        watched = random.sample(self._strangers, min(USERS, len(self._strangers)))
        return {
            "uid": uid,
            "quiet": number % 3 == 0,
            "status": self.statuses[uid],
            "users": watched + random.sample(sorted(self.uids - {uid}), min(FRIENDS, len(self.uids) - 1)),
            "rooms": random.sample(self._rooms, number % 3),
            "watched_rooms": random.sample(self._rooms, 2),
        }

    def seen(self) -> dict[Pair, Sight]:
        """Ask all processes; those that have failed see nothing."""
        found: dict[Pair, Sight] = {}
        for process in self._processes:
            for uid, view in process.views().items():
                found[Pair(uid, ITSELF)] = Sight(view["session"])
                found |= {Pair(uid, each): Sight(*state) for each, state in view["users"].items()}
                found |= {Pair(uid, room): Sight(count) for room, count in view["rooms"].items()}
        return found

    def live_sessions(self) -> dict[str, str]:
        """Return, by uid, the sessions of the clients that are connected."""
        own = {pair.uid: sight.what for pair, sight in self.seen().items() if pair.watched == ITSELF}
        return {uid: str(session) for uid, session in own.items() if session is not None}

    def await_connected(self, seconds: float) -> list[str]:
        """Wait until all are connected; return the users of those that are not."""

        def lost() -> set[str]:
            connected = self.live_sessions()
            expected = (each.uids - each.replaced for each in self._processes if not each.failure)
            return set().union(*expected) - connected.keys()

        wait_for(lambda: not lost(), seconds, poll_s=POLL_INTERVAL_S)
        return sorted(lost())

    def await_agreement(self, find: Callable[[Seen], Differences], seconds: float) -> list[str]:
        """Wait until each client has seen each thing as it is; return in words what is never so.

        Users come and go meanwhile, so one moment is not the same for all.
        """
        until = time.monotonic() + seconds
        seen = self.seen()
        self.compared += len(seen)
        wrong = find(seen)
        while not all(each.is_lost for each in wrong.values()) and time.monotonic() < until:
            time.sleep(POLL_INTERVAL_S)
            found = find(self.seen())
            wrong = {pair: found[pair] for pair in wrong if pair in found}
        self.lost += sum(each.is_lost for each in wrong.values())
        return sorted(each.text for each in wrong.values() if not each.is_lost)

    @property
    def replaced(self) -> int:
        """How many clients were replaced by an earlier login of their own."""
        return sum(len(each.replaced) for each in self._processes)

    def stop(self) -> list[str]:
        """Let all log out; return what has failed in the programs."""
        return [failure for process in self._processes for failure in process.stop()]

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._balancer.close()
