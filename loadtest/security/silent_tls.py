"""Strangers on the port for TLS who never come to a login: silent, with half a hello, a byte a second."""

import math

from loadtest.hostile.stage import in_words
from loadtest.hostile.strangers import LATE_S
from loadtest.nodes.outcome import Outcome
from loadtest.security.guarded import Secured
from loadtest.security.silent import LOGIN_TIMEOUT_S
from loadtest.security.strangers import Habit, Plan, Stranger, strangers
from loadtest.security.tls_clients import hello

PER_SECOND = 1000.0


def silent_tls(on: Secured, count: int) -> Outcome:
    """Let so many come, and watch how long they stay."""
    greeting = hello()
    half = len(greeting) // 2
    habits = (Habit(), Habit(greeting[:half]), Habit(drip=greeting), Habit(greeting))
    plan = Plan(on.address, habits, count, PER_SECOND, LOGIN_TIMEOUT_S + 2 * LATE_S)
    return judge(strangers(plan), on.stage.others_hurt())


def judge(came: list[Stranger], hurt: list[str]) -> Outcome:
    """Hold how long they stayed against what is promised."""
    broken = [*hurt]
    lived = [each.lived_s for each in came]
    alive = sum(time_s > LOGIN_TIMEOUT_S + LATE_S for time_s in lived)
    early = sum(time_s < LOGIN_TIMEOUT_S for time_s in lived)
    if alive:
        broken.append(f"{alive} of {len(came)} were open at {LOGIN_TIMEOUT_S + LATE_S:g} s")
    if early:
        broken.append(f"{early} were closed too early")
    most = max((time_s for time_s in lived if time_s < math.inf), default=math.nan)
    measured = (
        f"closed after {min(lived, default=math.nan):.3f} to {most:.3f} s; open at "
        f"{LOGIN_TIMEOUT_S + LATE_S:g} s: {alive}; {in_words(hurt)}"
    )
    injected = f"{len(came):,} clients on the port for TLS: silent, half a hello, a byte a second, a hello"
    return Outcome("silent-tls", injected if came else "", measured, broken)
