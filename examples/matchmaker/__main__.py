"""``python -m examples.matchmaker``: pairs of players, and a winner if one of them stays away.

The matchmaker follows the events: two players who are online and idle are paired, and each gets a message. A
player who goes offline has three seconds to return. That is a follow-up: the server's scheduler writes it
when the time is over, unless the player has returned, also if the matchmaker was restarted meanwhile. (This
one keeps its games in memory; a real one has them in its database.)
"""

import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from examples.local_server import LocalServer, local_server
from presence.client import Delivered, connect_blocking
from presence.common.errors import StoreError, StoreUnavailable
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
        self._online: dict[str, str] = {}  # in order of their arrival; the ids of their online events
        self._opponents: dict[str, str] = {}
        self._lock = threading.Lock()

    def handle_event(self, event: object, send: Send) -> None:
        """Note who came or went, and pair those who are idle. A user may come online twice: `returned`."""
        with self._lock:
            match event:
                case Snapshot():  # the first, or after a gap, in which a follow-up may be lost, too
                    self._online = {uid: period.id for uid, period in event.online.items()}
                    for uid in [uid for uid in self._opponents if uid not in self._online]:
                        self._end_game(uid, send)
                case Online():
                    self._online[event.uid] = event.id
                case Offline():
                    self._online.pop(event.uid, None)
            self._start_games(send)

    def end_game(self, uid: str, offline_id: str, send: Send) -> None:
        """End the game of a player who stayed away; `offline_id`: of the event with which they left.

        A follow-up may be delivered again: a player who has come online since then plays another game.
        """
        with self._lock:
            online_id = self._online.get(uid)
            if online_id is None or _order(online_id) < _order(offline_id):
                self._end_game(uid, send)
                self._start_games(send)

    def _end_game(self, uid: str, send: Send) -> None:
        """End a game; the opponent wins, unless they are away, too."""
        winner = self._opponents.pop(uid, None)
        if winner is None:
            return
        del self._opponents[winner]
        if winner in self._online:
            print(f"{winner} wins: {uid} stayed away", flush=True)
            send(winner, {"won_against": uid})
        else:
            print(f"no winner: {uid} and {winner} both stayed away", flush=True)

    def _start_games(self, send: Send) -> None:
        idle = [uid for uid in self._online if uid not in self._opponents]
        for one, other in zip(idle[::2], idle[1::2], strict=False):  # an odd one waits
            self._opponents |= {one: other, other: one}
            print(f"{one} plays against {other}", flush=True)
            send(one, {"opponent": other})
            send(other, {"opponent": one})


def _order(entry_id: str) -> list[int]:
    """Of two events of a user the newer one is the higher; "" is the highest."""
    return [*map(int, entry_id.split("-"))] if entry_id else [2**64]


def sending(sender: PresenceSender) -> Send:
    """Return a function that sends a message; one that Redis does not take ends no game."""

    def send(to: str, body: dict[str, str]) -> None:
        try:
            sender.send(to, body)
        except (StoreUnavailable, StoreError) as error:
            print(f"{to} could not be told {body}: {error}", flush=True)

    return send


def pair_players(matchmaker: Matchmaker, redis_url: str) -> None:
    """Follow the events; does not return."""
    with PresenceSender(redis_url, "@matchmaker") as sender:
        for event in follow_sync(redis_url):
            matchmaker.handle_event(event, sending(sender))


def decide_games(matchmaker: Matchmaker, redis_url: str) -> None:
    """Follow the follow-ups; does not return."""
    with (
        PresenceSender(redis_url, "@matchmaker") as sender,
        due_sync(redis_url, group="matchmaker") as followups,
    ):
        for followup in followups:
            match followup:
                case FollowUp(name="stayed-away", uid=uid, offline_id=offline_id):
                    matchmaker.end_game(uid, offline_id, sending(sender))


def run_or_exit(work: Callable[[Matchmaker, str], None], matchmaker: Matchmaker, redis_url: str) -> None:
    """Run a thread's work; without it there is no matchmaker any more, so its error ends the program."""
    try:
        work(matchmaker, redis_url)
    except Exception:
        traceback.print_exc()
        os.kill(os.getpid(), signal.SIGTERM)


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
                arguments = (work, matchmaker, server.redis_url)
                threading.Thread(target=run_or_exit, args=arguments, daemon=True).start()
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
