"""A little of each case on a real server; `python -m loadtest.security` does as much as is promised."""

from collections.abc import Iterator

import pytest

from loadtest.hostile.stage import Stage, staged
from loadtest.nodes.outcome import Outcome, table
from loadtest.security import bombs, emfile, flood, timing, tokens, watchers
from loadtest.security.attempts import Plain
from loadtest.security.guarded import UNBOUNDED, Guarded, guarded, secured
from loadtest.security.tls_reload import tls_reload
from protocol import Code


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with staged(login_timeout=60) as stage:
        yield stage


@pytest.fixture(scope="module")
def on() -> Iterator[Guarded]:
    with guarded(*UNBOUNDED, algorithms=tokens.ALGORITHMS) as on:
        yield on


def assert_kept(outcome: Outcome) -> None:
    print(table([outcome]))
    assert outcome.failures == []


def test_bombs_that_wait_side_by_side_cost_little(stage: Stage) -> None:
    assert_kept(bombs.bombs(stage, 200))


def test_without_descriptors_nobody_is_lost(stage: Stage) -> None:
    outcome = emfile.emfile(stage, 60, 1.5)
    print(table([outcome]))
    assert outcome.injected
    assert not stage.others_hurt()


def test_a_pool_of_watches_that_is_empty_refuses_those_who_want_more_than_their_own() -> None:
    with staged("--max-shared-watches", "20000") as on:
        outcome = watchers.watchers(on, 40, 20_000)
    assert_kept(outcome)
    assert "'busy, with a time to return': " in outcome.measured


def test_each_refusal_of_a_flood_names_a_time_to_return() -> None:
    with staged("--login-rate", "50", "--login-burst", "300") as stage:
        load = flood.offer(stage, Plain("flood"), 500.0, 2.0)
        print(load)
        assert load.unread == 0
        assert len(load.ended) > load.number(0) > 0
        assert not stage.others_hurt()


def test_a_tampered_token_is_refused_over_the_wire(on: Guarded) -> None:
    tries = tokens.try_over_wire(on.stage, on.issuers, 90)
    assert tries.refused.total() == 90
    assert not tries.accepted
    assert len(tries.words) == 1
    assert tokens.as_another(on.stage, on.issuers)


def test_each_way_to_be_refused_is_refused_in_the_same_words(on: Guarded) -> None:
    every = timing.ways(on.issuers[0], [on.stage.others.uid(0)])
    codes = {way: timing.try_once(on.stage, frames[0])[1] for way, frames in every.items()}
    assert codes == dict.fromkeys(every, Code.AUTH_FAILED)


def test_a_renewed_certificate_drops_nobody() -> None:
    with secured() as on:
        assert_kept(tls_reload(on, 10, seconds=0.5))
