"""``python -m examples.game_lobby``: a room for each game, which opens and closes with its players.

A player joins a game by being in its room, ``game:1``. Nobody creates the room: the backend follows the
stream of rooms, opens a game when its room gets its first player, and closes it when the last one has left,
logged out or lost the connection for longer than the grace. (This one keeps its games in memory.)
"""

import os
import signal
import threading
import time
import traceback

from examples.local_server import LocalServer, local_server
from presence.client import connect_blocking
from presence.reader import PresenceReader
from presence.rooms import Gap, Occupied, Vacated, subscribe_rooms_sync


class Lobby:
    """The open games."""

    def __init__(self) -> None:
        self.games: set[str] = set()

    def handle_event(self, event: object, reader: PresenceReader) -> None:
        """Open or close a game. An event may be delivered again, after a crash: then nothing changes."""
        match event:
            case Occupied(room=room, uid=uid) if room.startswith("game:"):
                self.games.add(room)
                print(f"{room} is open: {uid} is there", flush=True)
            case Vacated(room=room, uid=uid) if room in self.games:
                self.games.discard(room)
                print(f"{room} is closed: {uid} was the last", flush=True)
            case Gap():  # Redis has lost events: read which games have players
                occupied = {room for room in reader.rooms(largest=1000) if room.startswith("game:")}
                print(f"now open: {', '.join(sorted(occupied)) or 'no game'}", flush=True)
                self.games = occupied

    def show(self, reader: PresenceReader) -> None:
        """Print how many players each open game has."""
        for room in sorted(self.games.copy()):
            print(f"{room} has {reader.room(room).count} players", flush=True)


def follow_rooms(lobby: Lobby, redis_url: str) -> None:
    """Open and close games; does not return. Without it there is no lobby, so its error ends the program."""
    try:
        with PresenceReader(redis_url) as reader, subscribe_rooms_sync(redis_url, group="lobby") as events:
            for event in events:
                lobby.handle_event(event, reader)
    except Exception:
        traceback.print_exc()
        os.kill(os.getpid(), signal.SIGTERM)


def play(server: LocalServer, uid: str, room: str, stays_s: float) -> None:
    """Be in a game for some seconds."""
    with connect_blocking(server.host, server.port, uid=uid) as player:
        player.update(join=[room])
        print(f"{uid} is in {player.joined}", flush=True)
        time.sleep(stays_s)
        player.update(leave=[room])  # or a logout, or a lost connection


def main() -> None:
    with local_server("--rooms", "open") as server, PresenceReader(server.redis_url) as reader:
        lobby = Lobby()
        threading.Thread(target=follow_rooms, args=(lobby, server.redis_url), daemon=True).start()
        time.sleep(1)
        games = [("ann", "game:1", 6.0), ("bob", "game:1", 4.0), ("eve", "game:2", 2.0)]
        players = [threading.Thread(target=play, args=(server, *game), daemon=True) for game in games]
        for player in players:
            player.start()
        while lobby.games or any(player.is_alive() for player in players):
            lobby.show(reader)
            time.sleep(1)


if __name__ == "__main__":
    main()
