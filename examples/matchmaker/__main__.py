"""``python -m examples.matchmaker``: pairs of players, and a winner if one of them stays away.

The matchmaker follows the events: two players who are online and idle are paired, and each gets a message. A
player who goes offline has three seconds to return. That is a follow-up: the server's scheduler writes it
when the time is over, unless the player has returned, also if the matchmaker was restarted meanwhile.
"""

import tempfile
import threading
import time
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


class Matchmaker:
    """Knows who is idle, and who plays against whom."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._idle: list[str] = []
        self._opponents: dict[str, str] = {}
        self._lock = threading.Lock()

    def pair_players(self) -> None:
        """Pair those who come online; does not return."""
        with PresenceSender(self._redis_url, "@matchmaker") as sender:
            for event in follow_sync(self._redis_url):
                with self._lock:
                    match event:
                        case Snapshot():
                            self._idle = [uid for uid in event.online if uid not in self._opponents]
                        case Online() if event.uid not in self._opponents:
                            self._idle.append(event.uid)
                        case Offline() if event.uid in self._idle:
                            self._idle.remove(event.uid)
                    while len(self._idle) >= 2:
                        self._start_game(sender, self._idle.pop(0), self._idle.pop(0))

    def decide_games(self) -> None:
        """Let a player win whose opponent stays away; does not return."""
        with (
            PresenceSender(self._redis_url, "@matchmaker") as sender,
            due_sync(self._redis_url, group="matchmaker", consumer="one") as followups,
        ):
            for followup in followups:
                match followup:
                    case FollowUp(name="stayed-away", uid=uid):
                        with self._lock:
                            winner = self._opponents.pop(uid, None)
                            if winner is not None:
                                del self._opponents[winner]
                                self._idle.append(winner)
                        if winner is not None:
                            print(f"{winner} wins: {uid} stayed away", flush=True)
                            sender.send(winner, {"won_against": uid})

    def _start_game(self, sender: PresenceSender, one: str, other: str) -> None:
        self._opponents |= {one: other, other: one}
        print(f"{one} plays against {other}", flush=True)
        sender.send(one, {"opponent": other})
        sender.send(other, {"opponent": one})


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
            matchmaker = Matchmaker(server.redis_url)
            for work in (matchmaker.pair_players, matchmaker.decide_games):
                threading.Thread(target=work, daemon=True).start()
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
