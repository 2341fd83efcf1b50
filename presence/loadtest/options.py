"""The load test's own options, beside locust's; what devices do by them, and what a run must not exceed.

No clock: both clocks are arguments. Each device plays by itself, by chance, or all play together: then at
every full multiple of a time on the wall clock, so that processes and machines agree without messages.
"""

import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from presence import protocol

SCENARIOS = ("mixed", "steady", "ramp", "storm", "silence", "flapping")  # see README.md
JOINT_ACTIONS = {"storm": "storm", "silence": "all silent"}  # what all do
JOINT_ACTION_ROW = "joint action"  # of the report: how many devices took part
JOINT_RETURN_ROW = "joint action, returned"  # how many of these have logged in again
PROOFS = {"storm": JOINT_RETURN_ROW, "silence": "goodbye idle_timeout"}
"""The row without which a scenario has judged nothing."""
STORM_RETURN_S = 2.0  # first bound of the jitter with which clients come back, as the specification says
RAMP_STEPS = 10
NOTHING = "nothing"
LIMITS = {
    "login": "login_p99_max",
    "keepalive, answered": "answer_p99_max",
    "offline idle_timeout, beyond what was due": "offline_p99_max",
    "goodbye idle_timeout": "offline_p99_max",
}
"""The options that limit rows of the report."""
_ABOVE_0 = ("tick", "action_every", "together_every")
_AT_LEAST_0 = (
    *("disconnect_grace", "slack", "idle_timeout_wish", "silence_share", "away_share"),
    *("logout_share", "source_addresses", "connections", "consumers", "login_p99_max", "answer_p99_max"),
    *("offline_p99_max", "failures_max"),
)


class Act(NamedTuple):
    """The next action, and when it is due on the monotonic clock; never is infinite."""

    due: float
    name: str


class Scenario:
    """One of `SCENARIOS`.

    Args:
        weights: of the actions in the mixed scenario.
        alone_s: mean seconds between two actions of a device.
        together_s: seconds between two joint actions.

    Raises:
        ValueError: no scenario has that name, or a time is not above 0.
    """

    def __init__(
        self, name: str, weights: Mapping[str, float], mean_action_s: float, joint_action_s: float
    ) -> None:
        if name not in SCENARIOS:
            raise ValueError(f"{name}: no such scenario; there are {', '.join(SCENARIOS)}")
        if min(mean_action_s, joint_action_s) <= 0:
            raise ValueError("the times between what devices do must be above 0")
        self._name = name
        self._actions = list(weights)
        self._weights = list(weights.values())
        self._mean_action_s = mean_action_s
        self._joint_action_s = joint_action_s

    def next(self, now: float, wall: float) -> Act:
        """Return the next action, by monotonic seconds and Unix seconds."""
        if self._name in JOINT_ACTIONS:
            return Act(now + self._joint_action_s - wall % self._joint_action_s, JOINT_ACTIONS[self._name])
        if self._name in {"steady", "ramp"}:
            return Act(math.inf, NOTHING)
        at = now + random.expovariate(1 / self._mean_action_s)
        if self._name == "flapping":
            return Act(at, "flap")
        return Act(at, random.choices(self._actions, self._weights)[0])


def ramp_users(elapsed_s: float, run_s: float, devices: int) -> int | None:
    """Return how many users a ramp has after some seconds; None when it is over."""
    if elapsed_s >= run_s:
        return None
    return math.ceil(devices * (int(elapsed_s / run_s * RAMP_STEPS) + 1) / RAMP_STEPS)


def add_options(parser: Any) -> None:
    """Add the options to locust's parser; each is also an environment variable, and a field of the web UI."""

    def option(flag: str, kind: type, default: Any, help: str, **more: Any) -> None:
        if default:
            help += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
        variable = "LOCUST_" + flag.removeprefix("--").replace("-", "_").upper()
        parser.add_argument(flag, type=kind, default=default, env_var=variable, help=help, **more)

    # The web UI shows no secrets, and no files and commands of this machine.
    option("--redis-url", str, "", "the servers' Redis", include_in_web_ui=False)
    parser.add_argument(
        "--no-events",
        action="store_true",
        include_in_web_ui=False,
        help="without access to Redis: judge only what a client sees",
    )
    option("--redis-prefix", str, "presence", "the prefix of the server's keys", include_in_web_ui=False)
    option(
        "--tls-ca", str, "", "file of certificates to trust; default: the system's", include_in_web_ui=False
    )
    parser.add_argument(
        "--tls-insecure", action="store_true", include_in_web_ui=False, help="do not verify the server"
    )
    option("--token-key-file", str, "", "key file whose last key signs the tokens", include_in_web_ui=False)
    option("--token-audience", str, "presence", "the audience of these tokens", include_in_web_ui=False)
    option(
        "--token-command",
        str,
        "",
        "command that prints a token for {uid}, instead of a key file",
        include_in_web_ui=False,
    )
    option("--tick", float, 1.0, "the server's setting, seconds: how late an offline event may be")
    option("--disconnect-grace", float, 5.0, "the server's setting, seconds: time to return after a close")
    option("--slack", float, 1.0, "seconds allowed for the way through Redis and for machines under load")
    option("--idle-timeout-wish", float, 0.0, "idle time-out that logins ask for, seconds; 0 asks for none")
    option("--scenario", str, "mixed", "behaviour of the devices", choices=list(SCENARIOS))
    option("--action-every", float, 20.0, "mean seconds between two actions of a device")
    option("--together-every", float, 60.0, "seconds, by the wall clock, between joint actions")
    option("--silence-share", float, 0.3, "share of the actions: fall silent, with the connection open")
    option("--away-share", float, 0.25, "share: close, or lose the connection, and come back")
    option("--logout-share", float, 0.1, "share: log out and come back; the rest is messages")
    parser.add_argument(
        "--no-messages", action="store_true", help="send no messages; their share is idle time"
    )
    option(
        "--source-addresses",
        int,
        16,
        "addresses to connect from, for a loopback target; 0: the kernel chooses",
    )
    option("--connections", int, 0, "devices of each locust user; 0: 1, and 500 of a SwarmUser")
    option("--consumers", int, 0, "consumers of the events in each process, in a group of their own")
    option("--login-p99-max", float, 1.0, "seconds; a run in which logins took longer fails; 0: no limit")
    option("--answer-p99-max", float, 0.5, "seconds; the same for keepalives that ask for an answer")
    option("--offline-p99-max", float, 0.0, "seconds; the same for offline events and goodbyes, beyond T")
    option("--failures-max", int, 0, "failures with which a run still passes")
    option(
        "--json-report", str, "", "file for the verdict, its reasons and all rows", include_in_web_ui=False
    )


def check_options(options: Any) -> None:
    """Refuse options that make no sense, or contradict each other; a page may change them between two runs.

    Raises:
        ValueError: there are such options.
    """
    if not options.redis_url and not options.no_events:
        raise ValueError("give --redis-url, to judge the server's events, or --no-events, to do without them")
    if options.no_events and options.consumers:
        raise ValueError("--consumers reads events, so it needs --redis-url instead of --no-events")
    for name in (*_ABOVE_0, *_AT_LEAST_0):
        value = getattr(options, name)
        is_enough = value > 0 if name in _ABOVE_0 else value >= 0
        if not (is_enough and math.isfinite(value)):
            least = "above 0" if name in _ABOVE_0 else "0 or more"
            raise ValueError(f"--{name.replace('_', '-')} must be {least}, not {value:g}")
    try:
        protocol.encode(protocol.login("anyone", id=1, idle_timeout=options.idle_timeout_wish or None))
    except protocol.EncodeError as error:
        raise ValueError(f"--idle-timeout-wish {options.idle_timeout_wish:g}: {error}") from None
    scenario(options)


def scenario(options: Any) -> Scenario:
    """Return the scenario; raises ValueError if options make no sense."""
    return Scenario(options.scenario, action_weights(options), options.action_every, options.together_every)


def action_weights(options: Any) -> dict[str, float]:
    """Return the weights of the actions.

    Raises:
        ValueError: the shares are not between 0 and 1, or more than 1 together.
    """
    weights = {
        "silence": options.silence_share,
        "away": options.away_share,
        "logout": options.logout_share,
    }
    rest = 1.0 - sum(weights.values())
    if min(weights.values()) < 0 or rest < -1e-9:
        raise ValueError("--silence-share, --away-share and --logout-share are parts of 1")
    weights["nothing" if options.no_messages else "message"] = max(0.0, rest)
    return weights


def exceeded_limits(entries: Mapping[tuple[str, str], Any], failures: int, options: Any) -> list[str]:
    """Return the limits that a run exceeded.

    Args:
        entries: locust's statistics, by name and type.
        options: the parsed options; a limit of 0 s is none.
    """
    over = []
    if failures > options.failures_max:
        over.append(f"{failures} failures, {options.failures_max} allowed")
    for (name, _), entry in entries.items():
        if not (limit_s := getattr(options, LIMITS.get(name, ""), 0.0)):
            continue
        p99_ms = entry.get_response_time_percentile(0.99)
        if p99_ms > limit_s * 1000:
            over.append(f"{name}: p99 {p99_ms:g} ms, {limit_s * 1000:g} allowed")
    limited = {name for name, option in LIMITS.items() if option == "offline_p99_max"}
    if options.offline_p99_max and not limited & {name for name, _ in entries}:
        over.append("--offline-p99-max has judged nothing: no device was offline in time before the end")
    return over


def unjudged_scenario(entries: Mapping[tuple[str, str], Any], options: Any) -> list[str]:
    """Return why a run ended before its joint action could be judged; empty if it was."""
    row = PROOFS.get(options.scenario)
    if row is None or (row, "device") in entries:
        return []
    return [
        f"--scenario {options.scenario} has judged nothing: all act together every "
        f"{options.together_every:g} s (--together-every); run for longer than that and T + tick + slack"
    ]
