"""Classes of failed Redis calls: the only place that knows redis-py's exceptions and Redis' error codes.

| class | for instance | what to do |
| --- | --- | --- |
| temporary | the connection is lost, LOADING, OOM, BUSY | try again |
| temporary, another server may serve now | MOVED, READONLY, the connection is lost | look up the server again
|
| an operator has to fix it | NOAUTH, NOPERM, a certificate of an unknown CA | report it prominently; try
again |
| unknown | WRONGTYPE, an error in a script | report it prominently; try again |

redis-py removes the code of an error reply if it has a class for it, puts the command before the rest in a
pipeline, and raises `ConnectionError` for replies that have nothing to do with the connection (NOAUTH,
WRONGPASS, LOADING).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from redis import exceptions

from presence.common.errors import StoreError, StoreInterrupted, StoreUnavailable
from presence.store.redis_tls import TlsError

CONNECTION_LOST: Final = (exceptions.ConnectionError, exceptions.TimeoutError)
"""Redis is unreachable, or refuses this user; `passes` distinguishes the two."""

CALL_ERRORS: Final = (exceptions.RedisError, OSError, ValueError, AttributeError, TypeError)
"""What a call may raise; the last three if another thread closes the connection in use."""

# Codes of temporary error replies.
_PASSING: Final = frozenset(
    {
        "ASK",  # a slot is being moved to another node
        "BUSY",  # a script runs for too long
        "CLUSTERDOWN",
        "LOADING",  # its data from disk
        "MASTERDOWN",
        "MISCONF",  # it cannot save its data, so it refuses writes
        "MOVED",
        "NOREPLICAS",  # fewer than `min-replicas-to-write`
        "NOSCRIPT",  # flushed again between loading and calling
        "OOM",
        "READONLY",
        "REPEAT",  # a script of ours: see lib/entries.lua
        "TRYAGAIN",  # a slot is being moved, and the keys are on both servers
        "UNBLOCKED",  # it became a replica while a call waited there
        "UNKILLABLE",  # a script that has written runs for too long
    }
)
# Codes after which another server may serve the key.
_ELSEWHERE: Final = frozenset(
    {"ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "UNBLOCKED"}
)
# Codes that concern the slot of the key, and no other key of the server.
_OF_SLOT: Final = frozenset({"ASK", "CLUSTERDOWN", "MOVED", "TRYAGAIN"})
# Codes of error replies that last until an operator changes a setting, here or in Redis.
_OPERATORS: Final = frozenset({"DENIED", "NOAUTH", "NOPERM", "WRONGPASS"})

# Redis before 7 wraps the reply to a script's command, with a hyphen unless it has run it. Redis 7 wraps that
# to an EXEC.
_WRAPPED: Final = re.compile(r"(?:@user_script: ?\d+: -?|discarded because of: )([A-Z]{2,}) ")
# A missing permission inside a script has no code in Valkey and Redis 7.0.
_NO_PERMISSION: Final = re.compile(r"ACL failure in script|The user executing the script can't ")
_CODE: Final = re.compile(r"[A-Z]+")


class CallInterrupted(exceptions.ConnectionError):
    """A connection broke after a call was sent; the text is that of the cause."""


def as_failure(error: Exception) -> StoreUnavailable | StoreError:
    """Return the failure that an exception of a call means for the caller."""
    if isinstance(error, CallInterrupted):
        return StoreInterrupted(str(error))
    text = f"{type(error).__name__}: {error}"
    if needs_operator(error):
        return StoreError(text)
    # Anything but a reply means that the connection broke, or was closed during the call.
    is_reply = isinstance(error, exceptions.ResponseError)
    return StoreError(text) if is_reply and not passes(error) else StoreUnavailable(text)


@contextmanager
def calling(close: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raise failures of calls as `StoreUnavailable` or `StoreError`; call `close` on any exception."""
    try:
        yield
    except CALL_ERRORS as error:
        close()
        raise as_failure(error) from error
    except BaseException:
        close()
        raise


def passes(error: BaseException) -> bool:
    """Whether a failed call may succeed later by itself: Redis is unreachable, loading, busy or full."""
    if needs_operator(error):
        return False
    return isinstance(error, CONNECTION_LOST) or code_of(error) in _PASSING


def is_elsewhere(error: BaseException) -> bool:
    """Whether another server may serve the key now: resolve the name, or read the map, again."""
    return not needs_operator(error) and (isinstance(error, CONNECTION_LOST) or code_of(error) in _ELSEWHERE)


def is_of_slot(error: BaseException) -> bool:
    """Whether an error reply concerns the key of the call, and not its server."""
    return code_of(error) in _OF_SLOT or not (passes(error) or needs_operator(error))


def needs_operator(error: BaseException) -> bool:
    """Whether an operator has to fix it: a password, permissions, keys or certificates."""
    refusals = (exceptions.AuthenticationError, TlsError)  # the first has no code if no user is configured
    return isinstance(error, refusals) or code_of(error) in _OPERATORS


def of_another_type(keys: Iterable[str]) -> exceptions.ResponseError:
    """Return the error of keys whose values have another type, with the command that repairs them."""
    return exceptions.ResponseError(f"WRONGTYPE value of another program: redis-cli DEL {' '.join(keys)}")


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
