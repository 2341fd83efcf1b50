"""A script's token takes its time; its keepalives do not wait."""

import threading

from presence.client import connect_blocking
from protocol import Kind
from tests.client.driving import SERVER_TIME_S, login_ok, token
from tests.client.test_token_sources import PATIENCE_S, Server


def test_beats_go_on_while_a_script_makes_a_token() -> None:
    server = Server(login_ok(keepalive=1.0))
    called, done = threading.Event(), threading.Event()
    made = iter([token(SERVER_TIME_S + 1, 1), token(SERVER_TIME_S + 3600, 2)])

    def slow() -> str:
        text = next(made)
        if text == fresh:
            called.set()
            assert done.wait(PATIENCE_S)
        return text

    fresh = token(SERVER_TIME_S + 3600, 2)
    try:
        with connect_blocking(*server.address, token=slow) as client:
            assert called.wait(PATIENCE_S)
            with server.news:
                beats = len(server.heard)
                assert server.news.wait_for(lambda: len(server.heard) >= beats + 2, PATIENCE_S)
            done.set()
            assert server.tokens(Kind.UPDATE, 1) == [fresh]
            assert client.statistics().logins == 1
    finally:
        done.set()
        server.close()
