"""``python -m examples.matchmaker``: pairs of players, and a winner if one of them stays away.

The matchmaker follows the events: two players who are online and idle are paired, and each gets a message. A
player who goes offline has three seconds to return. That is a follow-up: the server's scheduler writes it
when the time is over, unless the player has returned, also if the matchmaker was restarted meanwhile.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from examples.local_server import LocalServer, local_server
from presence.client import Delivered, connect_blocking
from presence.followups import FollowUp, due_sync
from presence.sender import PresenceSender
from presence.subscriber import Offline, Online, Snapshot, follow_sync

SETTINGS = """
[[followups]]
name = "stayed-away"
after = 3
"""


Send = Callable[[str, dict[str, str]], object]


class Matchmaker:
    """Knows who is online, and who plays against whom; the others are idle."""

    def __init__(self) -> None:
        self._online: dict[str, None] = {}  # in order of their arrival
        self._opponents: dict[str, str] = {}
        self._lock = threading.Lock()

    def handle_event(self, event: object, send: Send) -> None:
        """Note who came or went, and pair those who are idle. A user may come online twice: `returned`."""
        with self._lock:
            match event:
                case Snapshot():
                    self._online = dict.fromkeys(event.online)
                case Online():
                    self._online[event.uid] = None
                case Offline():
                    self._online.pop(event.uid, None)
            self._start_games(send)

    def end_game(self, uid: str, send: Send) -> None:
        """End the game of a player who stayed away; the opponent wins, unless they are away, too."""
        with self._lock:
            winner = self._opponents.pop(uid, None)
            if winner is None:
                return
            del self._opponents[winner]
            if winner in self._online:
                print(f"{winner} wins: {uid} stayed away", flush=True)
                send(winner, {"won_against": uid})
            else:
                print(f"no winner: {uid} and {winner} both stayed away", flush=True)
            self._start_games(send)

    def _start_games(self, send: Send) -> None:
        idle = [uid for uid in self._online if uid not in self._opponents]
        for one, other in zip(idle[::2], idle[1::2], strict=False):  # an odd one waits
            self._opponents |= {one: other, other: one}
            print(f"{one} plays against {other}", flush=True)
            send(one, {"opponent": other})
            send(other, {"opponent": one})


def pair_players(matchmaker: Matchmaker, redis_url: str) -> None:
    """Follow the events; does not return."""
    with PresenceSender(redis_url, "@matchmaker") as sender:
        for event in follow_sync(redis_url):
            matchmaker.handle_event(event, sender.send)


def decide_games(matchmaker: Matchmaker, redis_url: str) -> None:
    """Follow the follow-ups; does not return."""
    with (
        PresenceSender(redis_url, "@matchmaker") as sender,
        due_sync(redis_url, group="matchmaker", consumer="one") as followups,
    ):
        for followup in followups:
            match followup:
                case FollowUp(name="stayed-away", uid=uid):
                    matchmaker.end_game(uid, sender.send)


def play(server: LocalServer, uid: str, stays_s: float) -> None:
    """Be a player for some seconds, then leave."""
    with connect_blocking(server.host, server.port, uid=uid) as player:
        until = time.monotonic() + stays_s
        while (left_s := until - time.monotonic()) > 0:
            try:
                push = player.receive(left_s)
            except TimeoutError:
                break
            if isinstance(push, Delivered):
                print(f"{uid} receives {push.body}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "presence.toml"
        settings.write_text(SETTINGS)
        with local_server("--config", str(settings)) as server:
            matchmaker = Matchmaker()
            for work in (pair_players, decide_games):
                threading.Thread(target=work, args=(matchmaker, server.redis_url), daemon=True).start()
            time.sleep(1)
            players = [
                threading.Thread(target=play, args=(server, uid, stays_s), daemon=True)
                for uid, stays_s in (("ann", 15.0), ("bob", 3.0))
            ]
            for player in players:
                player.start()
            for player in players:
                player.join()


if __name__ == "__main__":
    main()
