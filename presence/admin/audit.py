"""One line of log for each act of an operator, and for each that was refused."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import structlog
import trio

from presence.admin.access import NOBODY, Operator
from presence.admin.http_figures import HttpFigures
from presence.buckets import Buckets

REFUSED_PER_S: Final = 2.0  # refused acts in the log in the long run: strangers must not fill it
REFUSED_BURST: Final = 50.0

Outcome = Literal["done", "failed", "refused"]

_log = structlog.get_logger("presence.admin")


class Audit:
    """Writes the lines, and counts.

    Args:
        figures: where acts are counted.
    """

    def __init__(self, figures: HttpFigures) -> None:
        self._figures = figures
        self._refusals: Buckets[str] = Buckets(REFUSED_PER_S, REFUSED_BURST)
        self._unsaid = 0

    def acted(
        self,
        operator: Operator,
        scope: Mapping[str, Any],
        verb: str,
        outcome: Outcome,
        *,
        uid: str | None = None,
        device: str | None = None,
        **details: object,
    ) -> None:
        """Tell what an operator did.

        Args:
            operator: who.
            scope: of the request.
            verb: what.
            outcome: how it ended.
            uid, device: to whom; no device: to all of them.
            details: what else is to be known.
        """
        self._figures.acted(verb, outcome)
        level = _log.info if outcome == "done" else _log.warning
        level(
            "audit",
            who=operator.name,
            role=operator.role if operator is not NOBODY else "none",
            peer=_peer(scope),
            verb=verb,
            uid=uid,
            device=device,
            outcome=outcome,
            **details,
        )

    def refused(self, scope: Mapping[str, Any], verb: str, code: str, operator: Operator = NOBODY) -> None:
        """Tell that somebody wanted to act and was not let; beyond some a second it is only counted."""
        if not self._refusals.take("", trio.current_time()):
            self._figures.acted(verb, "refused")
            self._unsaid += 1
            return
        unsaid, self._unsaid = self._unsaid, 0
        self.acted(operator, scope, verb, "refused", reason=code, unsaid=unsaid)


def _peer(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "unknown"
