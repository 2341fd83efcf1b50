"""Redis forgets: everything, or its last writes."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from loadtest.nodes.crowd import Crowd
from loadtest.nodes.data import Data
from loadtest.nodes.outcome import Outcome, say
from loadtest.nodes.serving import Serving, Setup, running, wait_for
from loadtest.nodes.verdict import LOGGED_OUT, ONLINE, RETURNED, Told, judge, left_over, told
from protocol import Code

NODES = 3
EQUAL_S = 5.0  # promised: so soon Redis equals the sessions that live
SETTLE_S = 12.0  # and no ghost comes up until all that waits after a resync is done
LOGIN_TIMEOUT_S = 10.0
TOLD_S = 1.0  # for what was done right before Redis forgets: it is written by then

Due = Mapping[str, list[Told]]


def losses(setup: Setup, *, users: int = 1000, settle_s: float = SETTLE_S) -> list[Outcome]:
    """Let Redis forget in all three ways, side by side; `settle_s` later nothing may have come up again."""
    cases = (partial(flush, is_quiet=False), partial(flush, is_quiet=True), rewind)
    with ThreadPoolExecutor(len(cases)) as pool:
        return [future.result() for future in [pool.submit(case, setup, users, settle_s) for case in cases]]


def flush(setup: Setup, users: int, settle_s: float, *, is_quiet: bool) -> Outcome:
    """Let three nodes lose all data. A tenth of the users has logged out before.

    Args:
        setup: of the servers.
        users: who have a client.
        settle_s: seconds until the last look.
        is_quiet: whether nobody does anything but beat after it; else a tenth logs out at once.
    """
    tenth = users // 10
    gone, leaving, staying = range(tenth), range(tenth, 2 * tenth), range(2 * tenth, users)
    if is_quiet:
        leaving, staying = range(0), range(tenth, users)

    def forget(data: Data, crowd: Crowd) -> bool:
        crowd.bring(range(users))
        wait_for(lambda: data.online(setup.keys()) == users, LOGIN_TIMEOUT_S)
        crowd.log_out(gone)
        wait_for(lambda: data.online(setup.keys()) == users - tenth, LOGIN_TIMEOUT_S)
        data.client.flushall()
        is_empty = data.online(setup.keys()) == 0
        crowd.log_out(leaving)
        return is_empty

    def due(crowd: Crowd) -> Due:
        # The stream is lost too. It begins anew with those who live, and tells the whole period of those who
        # left; whoever was gone before is not heard of any more.
        return {
            **{crowd.uid(n): [] for n in gone},
            **{crowd.uid(n): [RETURNED, LOGGED_OUT] for n in leaving},
            **{crowd.uid(n): [RETURNED] for n in staying},
        }

    return _play(
        f"FLUSHALL, {'all quiet' if is_quiet else 'users leave'}", setup, users, settle_s, forget, due
    )


def rewind(setup: Setup, users: int, settle_s: float) -> Outcome:
    """Let Redis start from a snapshot that misses a tenth of the users' logins, and another's log-outs."""
    tenth = users // 10
    gone, late, staying = range(tenth), range(tenth, 2 * tenth), range(2 * tenth, users)

    def forget(data: Data, crowd: Crowd) -> bool:
        crowd.bring([*gone, *staying])
        wait_for(lambda: data.online(setup.keys()) == users - tenth, LOGIN_TIMEOUT_S)
        data.client.save()
        crowd.log_out(gone)
        crowd.bring(late)
        crowd.wait_online(users - tenth, LOGIN_TIMEOUT_S)
        time.sleep(TOLD_S)
        told_before = len(data.events(setup.keys()))
        data.kill()
        data.start()
        return len(data.events(setup.keys())) == users - tenth < told_before

    def due(crowd: Crowd) -> Due:
        return {
            # The snapshot has them online, and nobody knows any more why they went.
            **{crowd.uid(n): [ONLINE, told("offline", Code.LOGOUT, Code.NODE_DOWN)] for n in gone},
            **{crowd.uid(n): [RETURNED] for n in late},
            **{crowd.uid(n): [ONLINE] for n in staying},
        }

    return _play("restart from a snapshot without the last writes", setup, users, settle_s, forget, due)


def _play(
    name: str,
    setup: Setup,
    users: int,
    settle_s: float,
    forget: Callable[[Data, Crowd], bool],
    due: Callable[[Crowd], Due],
) -> Outcome:
    """Let Redis forget, and measure until it equals the sessions that live, and judge what it tells then.

    Args:
        name: of the case.
        setup: of the servers.
        users: who have a client.
        settle_s: seconds until the last look.
        forget: lets them come and go and Redis forget; returns whether it has. Redis answers when it returns.
        due: tells what has to stand in the stream in the end.
    """
    with (
        Data() as data,
        running([lambda: Serving(data.url, "--workers", str(NODES), *setup.flags)]) as (server,),
        Crowd([server.address], "user", users, beat_s=setup.beat_s) as crowd,
    ):
        has_forgotten = forget(data, crowd)
        equal_s = data.equal_after(setup.keys(), crowd.live, SETTLE_S)
        say(f"{name}: Redis is as it has to be after {equal_s:.2f} s")
        time.sleep(settle_s)
        ghosts, missing = data.compare(setup.keys(), crowd.live())
        events = data.events(setup.keys())
        broken = [*judge(due(crowd), events).broken, *left_over(ghosts, missing), *server.failures()]
    broken += [f"equal only after {equal_s:.1f} s"] if equal_s > EQUAL_S else []
    return Outcome(
        name,
        f"{users:,} users on {NODES} nodes; the data was gone" if has_forgotten else "",
        f"equal to the live sessions after {equal_s:.2f} s; ghosts {len(ghosts)}, missing {len(missing)}; "
        f"events {len(events):,}",
        broken,
    )
