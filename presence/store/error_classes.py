"""What a failed call of Redis means: the one place that knows redis-py's exceptions and Redis' error codes.

| what | for instance | and so |
| --- | --- | --- |
| it passes | the connection is lost, LOADING, OOM, BUSY | try again |
| it passes, and another may serve now | MOVED, READONLY, the connection is lost | ask anew who does |
| an operator has to mend it | NOAUTH, NOPERM, a certificate of no known CA | say so loudly; try again |
| nothing known here | WRONGTYPE, an error in a script | say so loudly; try again |

redis-py cuts the code off an error reply where it has a class for it, puts the command before the rest in a
pipeline, and makes a `ConnectionError` of replies that say nothing of the connection (NOAUTH, WRONGPASS,
LOADING).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from redis import exceptions

from presence.common.errors import StoreError, StoreInterrupted, StoreUnavailable
from presence.store.tls import TlsError

CONNECTION_LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
"""Redis cannot be reached, or has refused to speak with this user: `passes` tells which."""

CALL_ERRORS: Final = (exceptions.RedisError, OSError, ValueError, AttributeError, TypeError)
"""What a call may raise; the last three if another thread closes the connection that redis-py is using."""

# Codes of error replies that pass with time.
_PASSING: Final = frozenset(
    {
        "ASK",  # a slot is on its way to another node
        "BUSY",  # a script runs for too long
        "CLUSTERDOWN",
        "LOADING",  # its data, from disk
        "MASTERDOWN",
        "MISCONF",  # it cannot save its data, so it takes none
        "MOVED",
        "NOREPLICAS",  # fewer than `min-replicas-to-write`
        "NOSCRIPT",  # flushed again between loading and calling
        "OOM",
        "READONLY",
        "TRYAGAIN",  # a slot is on its way, and the keys are on both sides
        "UNBLOCKED",  # it became a replica while a call waited there
        "UNKILLABLE",  # a script that has written runs for too long
    }
)
# Those after which another may be the one to ask.
_ELSEWHERE: Final = frozenset(
    {"ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "UNBLOCKED"}
)
# Codes of error replies that last until an operator has changed a setting, here or there.
_OPERATORS: Final = frozenset({"DENIED", "NOAUTH", "NOPERM", "WRONGPASS"})

# Redis before 7 wraps the reply to a script's command; Redis 7 that to an EXEC.
_WRAPPED: Final = re.compile(r"(?:@user_script: ?\d+: -|discarded because of: )([A-Z]+) ")
# What the caller's user may not do gets no code in a script: by Valkey, and by Redis 7.0.
_NO_PERMISSION: Final = re.compile(r"ACL failure in script|The user executing the script can't ")
_CODE: Final = re.compile(r"[A-Z]+")


class CallInterrupted(exceptions.ConnectionError):
    """A connection broke after a call was sent over it; the text is that of what broke it."""


def as_failure(error: Exception) -> StoreUnavailable | StoreError:
    """Return what an exception of a call means for whoever made it."""
    if isinstance(error, CallInterrupted):
        return StoreInterrupted(str(error))
    text = f"{type(error).__name__}: {error}"
    if needs_operator(error):
        return StoreError(text)
    # What is no reply tells of a connection that broke, or was closed under the call's feet.
    is_reply = isinstance(error, exceptions.ResponseError)
    return StoreError(text) if is_reply and not passes(error) else StoreUnavailable(text)


@contextmanager
def calling(close: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raise what calls fail with as `StoreUnavailable` or `StoreError`; close then, or if interrupted."""
    try:
        yield
    except CALL_ERRORS as error:
        close()
        raise as_failure(error) from error
    except BaseException:
        close()
        raise


def passes(error: BaseException) -> bool:
    """Whether a failed call may work later with nothing changed: Redis is away, loading, busy or full."""
    if needs_operator(error):
        return False
    return isinstance(error, CONNECTION_LOST) or code_of(error) in _PASSING


def is_elsewhere(error: BaseException) -> bool:
    """Whether another server may be the one to ask now: the name is to be resolved, the map read anew."""
    return not needs_operator(error) and (isinstance(error, CONNECTION_LOST) or code_of(error) in _ELSEWHERE)


def needs_operator(error: BaseException) -> bool:
    """Whether an operator has to mend it: a password, permissions, keys or certificates."""
    refusals = (exceptions.AuthenticationError, TlsError)  # the first without a code where no user is set up
    return isinstance(error, refusals) or code_of(error) in _OPERATORS


def code_of(error: BaseException) -> str:
    """Return the code of an error reply, as ``MOVED``; "" if it has none or is no reply."""
    if not isinstance(error, exceptions.RedisError):
        return ""
    text = str(error).rpartition("caused error: ")[2]
    if wrapped := _WRAPPED.search(text):
        return wrapped[1]
    if _NO_PERMISSION.search(text):
        return "NOPERM"
    if error.status_code:
        return error.status_code
    first = text.partition(" ")[0]
    return first if isinstance(error, exceptions.ResponseError) and _CODE.fullmatch(first) else ""
