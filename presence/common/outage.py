"""The log of calls that fail: each outage is logged once, in it each distinct refusal once, and its end."""

from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

from presence.common.backoff import backoff_s, jittered
from presence.common.errors import StoreError, StoreUnavailable
from presence.common.scarcity import scarcity

MAX_LOGGED_REFUSALS: Final = 16  # distinct ones remembered in an outage; beyond it some are logged again


class EventLog(Protocol):
    """What events are logged to: a logger of structlog has these methods."""

    def warning(self, event: str, *, error: str = ...) -> object: ...

    def error(self, event: str, *, error: str = ...) -> object: ...


@dataclass(eq=False, repr=False)
class Outage:
    """Logs failing calls: an outage once, each new refusal in it, and its end when all calls work again."""

    log: EventLog
    _: KW_ONLY
    unreachable: str  # event when Redis cannot be reached; "": not logged
    refused: str  # event when it refuses
    failed_otherwise: str  # event after any other error
    recovered: str  # event when all calls work again; "": not logged
    first_s: float  # the first pause before another attempt
    limit_s: float  # the longest pause

    def __post_init__(self) -> None:
        self._failures: dict[str, int] = {}  # consecutive failures of each kind of call that fails now
        self._logged: set[str] = set()

    def failed(self, call: str, error: Exception) -> float:
        """Log a failure; return the pause before the next attempt, with jitter.

        Args:
            call: the kind of call that failed; others may work meanwhile.
            error: the failure.
        """
        failures = self._failures.get(call, 0)
        self._failures[call] = failures + 1
        is_away = isinstance(error, StoreUnavailable)
        text = scarcity(error) or str(error)
        refusal = "" if is_away else text or type(error).__name__
        if refusal not in self._logged:
            self._logged = {refusal} if len(self._logged) >= MAX_LOGGED_REFUSALS else {*self._logged, refusal}
            if isinstance(error, StoreError):
                self.log.error(self.refused, error=refusal)
            elif not is_away:
                self.log.error(self.failed_otherwise, error=refusal)
            elif self.unreachable:
                self.log.warning(self.unreachable, error=text)
        return jittered(backoff_s(failures, self.first_s, self.limit_s))

    def worked(self, call: str) -> None:
        """Note that a kind of call works."""
        self._failures.pop(call, None)
        if self._logged and not self._failures:
            self._logged.clear()
            if self.recovered:
                self.log.warning(self.recovered)
