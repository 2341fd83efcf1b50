"""``presence rebalance``: clients move to a new server, without an event, and logins stay fast meanwhile."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import pytest

from loadtest.servers import LocalRedis
from presence.loadtest.client_loop import ClientLoop, LoopClient, LoopThread
from presence.protocol import Code
from presence.store.keys import Keys
from tests.support.preloaded import PreloadedServer

Address = tuple[str, int]
IDLE_TIMEOUT_S: Final = 30.0
LOGIN_WITHIN_S: Final = 30.0
RETURN_WITHIN_S: Final = 10.0


class MovingClient(LoopClient):
    """A client that connects to the server that `choose` returns, and returns as the specification says."""

    def __init__(self, place: "Place", uid: str, choose: Callable[[], Address]) -> None:
        super().__init__(place.loop, uid)
        self.place = place
        self.reconnects = False  # by itself, below
        self.moves = 0
        self.is_over = False  # the servers stop
        self.login_ms: list[float] = []  # of each login, from the connect to the answer
        self.choose = choose
        self._begun = 0.0

    def connect(self) -> None:
        self.address, self._begun = self.choose(), time.monotonic()
        super().connect()

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.login_ms.append(1000 * (now - self._begun))
        self.place.logged_in[self.address] += 1

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        if self.is_over:
            return
        assert payload is not None, "the connection broke"
        assert payload["code"] == Code.SERVER_DRAIN, payload
        self.moves += 1
        self.place.logged_in[self.address] -= 1
        self.loop.call_at(now + payload["retry_after"] + random.uniform(0, 1), self.connect)


class Place:
    """Servers on one Redis, and clients that are spread over them."""

    def __init__(self, stack: ExitStack, balancer: str) -> None:
        self.redis = stack.enter_context(LocalRedis())
        self.addresses: list[Address] = []
        self.clients: list[MovingClient] = []
        self.logged_in: Counter[Address | None] = Counter()
        self._stack = stack
        for _ in range(2):
            self.add_server()
        self.loop = ClientLoop(self.addresses[0])
        self.thread = stack.enter_context(LoopThread(self.loop))
        self.choose: Callable[[], Address] = {"random": self._any, "least": self._least}[balancer]

    def add_server(self) -> None:
        flags = ("--redis", self.redis.url, "--idle-timeout", f"{IDLE_TIMEOUT_S:g}")
        self.addresses.append(self._stack.enter_context(PreloadedServer(*flags)).address)

    def _any(self) -> Address:
        return random.choice(self.addresses)

    def _least(self) -> Address:
        return min(self.addresses, key=self.logged_in.__getitem__)

    def log_in(self, clients: int) -> None:
        self.clients = [MovingClient(self, f"u{n}", self._any) for n in range(clients)]
        self.thread.connect_all(self.clients, 500, LOGIN_WITHIN_S)
        for each in self.clients:
            each.choose = self.choose
        self.thread.call(partial(self.loop.start_keepalives, 0.4 * IDLE_TIMEOUT_S))
        until(lambda: self.events() == clients)
        time.sleep(2)  # counts are renewed with the leases

    def end(self) -> None:
        """Let the servers stop before the clients."""
        for each in self.clients:
            each.is_over = True

    def events(self) -> int:
        return int(self.redis.client.xlen(Keys().events(0)))

    def counts(self) -> list[int]:
        return [self.logged_in[address] for address in self.addresses]

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "presence", "rebalance", "--redis", self.redis.url, *words]
        return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.begin(*words)
        out, err = process.communicate(timeout=900)
        return process.returncode, out, err


def until(holds: Callable[[], object], within_s: float = 20.0) -> None:
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def check_a_third_server(clients: int, rate: float, balancer: str) -> None:
    """Let a third server join two, rebalance, and compare what clients saw with what was announced."""
    with ExitStack() as stack:
        place = Place(stack, balancer)
        place.log_in(clients)
        before_ms = [ms for each in place.clients for ms in each.login_ms]
        place.add_server()
        stack.callback(place.end)
        time.sleep(2)
        begun = time.monotonic()
        status, out, err = place.run("--json", "--rate", f"{rate:g}")
        took_s = time.monotonic() - begun
        assert status == 0, (out, err)
        until(lambda: sum(place.counts()) == clients, RETURN_WITHIN_S)
        found, counts, moves = json.loads(out), place.counts(), Counter(each.moves for each in place.clients)
        during_ms = [ms for each in place.clients for ms in each.login_ms[1:]]
        spread = max(abs(3 * each / clients - 1) for each in counts)
        print(
            f"\n{balancer}: {clients} clients, {rate:g} per second and node: connections {counts}, within "
            f"{spread:.1%} after {took_s:.0f} s (announced: {found['plan']['longest_s']} s at most); "
            f"{found['done']['sent_away']} sent away, events {place.events() - clients}; login p99 "
            f"{p99(before_ms):.1f} ms before at 500 per second, {p99(during_ms):.1f} ms meanwhile"
        )
        assert place.events() == clients, "nobody went offline or came online"
        assert spread <= found["plan"]["tolerance"]
        assert took_s <= found["plan"]["longest_s"] + 5
        assert found["done"]["sent_away"] == sum(n * times for n, times in moves.items())
        assert max(moves) == 1, "none is sent away twice"


@pytest.mark.parametrize("balancer", [pytest.param("random", marks=pytest.mark.nightly), "least"])
def test_clients_move_to_a_third_server(balancer: str) -> None:
    check_a_third_server(2400, 100, balancer)


@pytest.mark.nightly
def test_a_call_is_refused_beside_another_and_can_be_stopped() -> None:
    with ExitStack() as stack:
        place = Place(stack, "least")
        place.log_in(600)
        place.add_server()
        stack.callback(place.end)
        time.sleep(2)
        first = place.begin("--rate", "5")
        until(lambda: place.logged_in[place.addresses[2]])
        time.sleep(2)  # nodes say whom they obey when they renew their leases
        status, _, err = place.run()
        assert (status, "another is under way: " in err) == (1, True)
        assert place.run("--stop")[1].startswith("stopped: ")
        _, err = first.communicate(timeout=30)
        assert (first.returncode, "no node obeys it any more" in err) == (1, True)
        moved = sum(each.moves for each in place.clients)
        second = place.begin("--rate", "5")
        until(lambda: sum(each.moves for each in place.clients) > moved)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=30)
        assert second.returncode == 1
        until(lambda: sum(place.counts()) == 600, RETURN_WITHIN_S)
        moved = sum(each.moves for each in place.clients)
        time.sleep(3)
        assert sum(each.moves for each in place.clients) == moved, "nodes have stopped"
        assert place.events() == 600


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("balancer", ["random", "least"])
def test_thousands_of_clients_move_to_a_third_server(balancer: str) -> None:
    check_a_third_server(6000, 20, balancer)
