"""Which hosts the load test accepts, and what makes a run fail besides a broken promise."""

import socket
from argparse import ArgumentParser, Namespace
from types import SimpleNamespace
from typing import Any

import pytest

from presence.loadtest.options import add_options, check_options, exceeded_limits, unjudged_scenario
from presence.loadtest.server_address import parse_host, resolve


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("example.org", ("example.org", 7400, False)),
        ("tcp://10.0.0.1:99/", ("10.0.0.1", 99, False)),
        ("presence://[::1]:99", ("::1", 99, False)),
        ("presences://[::1]", ("::1", 7443, True)),
        ("2001:db8::1:7", ("2001:db8::1:7", 7400, False)),  # not port 7
    ],
)
def test_forms_of_a_host(host: str, address: tuple[str, int, bool]) -> None:
    assert parse_host(host) == address


@pytest.mark.parametrize(
    "host",
    ["http://10.0.0.1:99", "10.0.0.1:http", "10.0.0.1:0", "10.0.0.1:65536", "[::1]:²", "presence://", ":99"],
)
def test_an_invalid_host_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"presences://|not a port|no host"):
        parse_host(host)


def test_of_a_names_addresses_the_one_with_the_server_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = socket.getaddrinfo

    def addresses(host: str, *given: Any, **more: Any) -> list[Any]:
        if host != "two.example.org":
            return lookup(host, *given, **more)
        return [found for each in ("127.0.0.9", "127.0.0.1") for found in lookup(each, *given, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert resolve("two.example.org", port) == ("127.0.0.1", port)
    assert resolve("two.example.org", port) == ("127.0.0.9", port)  # as good as the other


@pytest.mark.parametrize(
    ("failures", "login_ms", "answer_ms", "options", "word"),
    [
        (0, 1000.0, 500.0, {}, ""),
        (1, 10.0, 10.0, {}, "1 failures"),
        (3, 10.0, 10.0, {"failures_max": 3}, ""),
        (0, 1001.0, 10.0, {}, "login: p99 1001 ms, 1000 allowed"),
        (0, 1.0, 10.0, {"login_p99_max": 0.0001}, "login: p99 1 ms, 0.1 allowed"),
        (0, 10.0, 501.0, {}, "answered"),
        (0, 9e9, 10.0, {"login_p99_max": 0.0}, ""),  # no limit
        (0, 10.0, 10.0, {"offline_p99_max": 1.0}, "goodbye"),
    ],
)
def test_a_run_over_a_limit_fails(
    failures: int, login_ms: float, answer_ms: float, options: dict[str, float], word: str
) -> None:
    def row(ms: float) -> Any:
        return SimpleNamespace(get_response_time_percentile=lambda _: ms)

    limits = {
        "login_p99_max": 1.0,
        "answer_p99_max": 0.5,
        "offline_p99_max": 0.0,
        "failures_max": 0,
    } | options
    rows = {("login", "device"): row(login_ms), ("keepalive, answered", "device"): row(answer_ms)}
    rows |= {("goodbye idle_timeout", "device"): row(1100.0), ("online", "event"): row(9e9)}
    found = exceeded_limits(rows, failures, Namespace(**limits))
    assert bool(found) is bool(word)
    assert all(word in each for each in found)


@pytest.mark.parametrize(
    ("scenario", "rows", "words"),
    [
        ("mixed", [], []),
        ("storm", ["login"], ["--together-every"]),
        ("storm", ["joint action"], ["T + tick"]),  # the run ended before they were back
        ("storm", ["joint action, returned"], []),
        ("silence", ["joint action"], ["T + tick"]),  # the run ended before the server had to decide
        ("silence", ["goodbye idle_timeout"], []),
    ],
)
def test_a_run_without_its_joint_action_proves_nothing(
    scenario: str, rows: list[str], words: list[str]
) -> None:
    options = Namespace(scenario=scenario, together_every=60.0)
    found = unjudged_scenario({(row, "device"): None for row in rows}, options)
    assert len(found) == len(words)
    assert all(word in found[0] for word in words)


def test_a_run_needs_redis_or_does_without_events() -> None:
    neither = Namespace(redis_url="", no_events=False, consumers=0)
    with pytest.raises(ValueError, match=r"--redis-url.+--no-events"):
        check_options(neither)


def options_of(*words: str) -> Namespace:
    class Parser(ArgumentParser):
        """Locust's, which also reads environment variables."""

        def add_argument(
            self, *names: Any, env_var: str = "", include_in_web_ui: bool = True, **more: Any
        ) -> Any:
            return super().add_argument(*names, **more)

    parser = Parser()
    add_options(parser)
    return parser.parse_args([*words, "--no-events"])


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "name", [name for name, value in vars(options_of()).items() if type(value) in {int, float}]
)
def test_a_number_that_makes_no_sense_is_refused(name: str, value: str) -> None:
    options = options_of()
    check_options(options)
    setattr(options, name, float(value))  # as a page does
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} |parts of 1"):
        check_options(options)


@pytest.mark.parametrize("name", ["tick", "action_every", "together_every"])
def test_a_time_that_cannot_be_0_is_refused(name: str) -> None:
    options = options_of(f"--{name.replace('_', '-')}", "0")
    with pytest.raises(ValueError, match="above 0"):
        check_options(options)


def test_a_limit_for_offline_events_fails_a_run_without_any() -> None:
    limits = {"failures_max": 0, "login_p99_max": 0.0, "answer_p99_max": 0.0}
    found = [exceeded_limits({}, 0, Namespace(**limits, offline_p99_max=limit)) for limit in (0.0, 1.0)]
    assert found[0] == []
    assert "--offline-p99-max has judged nothing" in found[1][0]
