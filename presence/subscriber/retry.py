"""Whether and when a subscription calls Redis again after a failure."""

import logging

from presence.common.backoff import jittered
from presence.common.outage import Outage
from presence.common.scarcity import scarcity
from presence.store.error_classes import as_failure, code_of, needs_operator, passes
from presence.subscriber.redis_connections import log

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0  # between two attempts while Redis is unreachable


class _RedisLog:
    """Writes events to `log`, after the name of Redis; see `presence.common.outage.EventLog`."""

    def __init__(self, redis: str) -> None:
        self._redis = redis

    def warning(self, event: str, *, error: str = "") -> None:
        log.log(logging.WARNING, event, self._redis, *([error] if error else []))

    def error(self, event: str, *, error: str = "") -> None:
        log.log(logging.ERROR, event, self._redis, error)


class Retry:
    """Decides after a failure whether and when to try again; logs each outage once.

    A failure before the first success is raised, because then the URL or the password is wrong. After it,
    failures that an operator has to fix are logged as errors and tried again; so are calls for which this
    process lacks a thread, a descriptor or memory.
    """

    def __init__(self, name: str) -> None:
        self._has_succeeded = self._was_redirected = False
        self._outage = Outage(
            _RedisLog(name),
            unreachable="lost Redis at %s, retrying: %s",
            refused="Redis at %s now refuses calls, retrying: %s",
            failed_otherwise="cannot call Redis at %s, retrying: %s",
            recovered="Redis at %s is reachable again",
            first_s=RETRY_FIRST_S,
            limit_s=RETRY_MAX_S,
        )

    def delay_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            Exception: `error` itself, if it is permanent.
        """
        lack = scarcity(error)
        if not (self._has_succeeded and (passes(error) or needs_operator(error) or lack)):
            raise error
        if code_of(error) == "MOVED" and not self._was_redirected:  # one moved shard is no outage
            self._was_redirected = True
            return jittered(RETRY_FIRST_S)
        return self._outage.failed("call", error if lack else as_failure(error))

    def succeeded(self) -> None:
        self._has_succeeded, self._was_redirected = True, False
        self._outage.worked("call")
