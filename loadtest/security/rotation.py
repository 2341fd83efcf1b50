"""Keys that are renewed under a thousand connected clients: nobody is dropped, new logins need a new key."""

import time
from collections.abc import Callable

from loadtest.hostile.stage import OTHERS_BEAT_S, Stage
from loadtest.nodes.crowd import Crowd
from loadtest.nodes.outcome import Outcome
from loadtest.nodes.serving import wait_for
from loadtest.security.credentials import Issuer, write_keys
from loadtest.security.guarded import UNBOUNDED, Guarded, answer, guarded
from protocol import Code

TAKEN_S = 3.0  # until a new key counts: the file is looked at each second
LOGIN_S = 30.0
LOGINS = 12  # at once: each worker is asked
STAYS_S = 5.0  # in which who is to be dropped would be
BROKEN_FILE = '{"keys": [{"kid": "half a'


def rotation(count: int) -> Outcome:
    """Renew the keys under so many."""
    with guarded("--workers", "2", *UNBOUNDED) as on:
        old, new = on.issuers[0], Issuer.fresh("key-new", "RS256")
        with Crowd(
            [on.stage.serving.address], "kept", count, beat_s=10 * OTHERS_BEAT_S, login=old.login
        ) as crowd:
            crowd.bring(range(count), 500.0)
            if not crowd.wait_online(count, LOGIN_S):
                return Outcome("rotation", "", f"only {crowd.online()} of {count} could log in")
            return _rotate(on, crowd, count, old, new)


def _rotate(on: Guarded, crowd: Crowd, count: int, old: Issuer, new: Issuer) -> Outcome:
    begun = time.monotonic()
    broken = [] if _granted(on.stage, old, "before") == LOGINS else ["the old key was not good before"]
    write_keys(on.keys, [old, new])
    added_s = _until(lambda: _granted(on.stage, new, "added") == LOGINS)
    write_keys(on.keys, [new])
    gone_s = _until(lambda: _granted(on.stage, old, "gone") == 0)
    on.keys.write_text(BROKEN_FILE)
    time.sleep(STAYS_S)
    after = _granted(on.stage, new, "after")
    if after < LOGINS:
        broken.append("with a broken file the keys from before are not good any more")
    dropped = len(crowd.diary.lost_since(begun))
    if dropped:
        broken.append(f"{dropped} of {count} connected clients were dropped")
    if not max(added_s, gone_s) <= TAKEN_S:
        broken.append(f"the new keys counted after {max(added_s, gone_s):.1f} s, {TAKEN_S:g} allowed")
    hurt = on.stage.others_hurt()
    measured = (
        f"dropped {dropped} of {crowd.online():,} connected; a key that was added was good after "
        f"{added_s:.2f} s, one that was taken away refused "
        f"after {gone_s:.2f} s; behind a broken file {after} of {LOGINS} logins are granted"
    )
    return Outcome("rotation", f"3 new files of keys under {count:,} connections", measured, broken + hurt)


def _until(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    is_so = wait_for(condition, 2 * TAKEN_S)
    return time.monotonic() - begun if is_so else float("inf")


def _granted(stage: Stage, issuer: Issuer, uid: str) -> int:
    """Log in with tokens of an issuer; return how many were granted, -1 if one was refused as busy."""
    codes = [
        answer(stage, issuer.login(f"{uid}-{number}")).payload.get("code", 0) for number in range(LOGINS)
    ]
    return codes.count(0) if {*codes} <= {0, Code.AUTH_FAILED} else -1
