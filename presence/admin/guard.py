"""Who asks, may he, and what became of it: stands before everything that is answered, and logs acts.

No request reaches a handler but through here, and what no verb was found for is treated as one that reads:
so nothing new is open by mistake.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import structlog
import trio
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from presence.admin.access import NOBODY, AccessRules
from presence.admin.answers import ApiError, not_found
from presence.admin.http_figures import OTHER, HttpFigures
from presence.auth.operator_tokens import OperatorToken, Role
from presence.common.rate_limit import KeyedRateLimiter

GUESS_DELAY_S: Final = 0.5  # that a wrong token is answered late
GUESSES_MAX: Final = 16  # at once; beyond, they are told to come back

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
REFUSED_PER_S: Final = 2.0  # refused acts in the log in the long run: strangers must not fill it
REFUSED_BURST: Final = 50.0

Outcome = Literal["done", "failed", "refused"]

log = structlog.get_logger("presence.admin")

Handler = Callable[[Request], Awaitable[Response]]
_CONVERTERS: Final = {"{uid}": "{uid:path}", "{file}": "{file:path}"}  # a uid may hold a slash


class Verb(Route):
    """Something that may be asked.

    Args:
        method: ``GET`` (``HEAD`` is then answered, too) or ``POST``.
        template: its path as the description of the interface has it.
        need: the role that it takes; None: it is open to everybody.
        handler: who answers.
        act: what the log calls it, if it changes anything.
    """

    def __init__(
        self, method: str, template: str, need: Role | None, handler: Handler, act: str | None = None
    ) -> None:
        path = template
        for plain, converted in _CONVERTERS.items():
            path = path.replace(plain, converted)
        super().__init__(path, handler, methods=[method])
        self.method = method
        self.template = template
        self.need = need
        self.act = act


def header_map(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request; of two that are alike both, with a comma between."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class AuthMiddleware:
    """The application.

    Args:
        verbs: what may be asked.
        access: the rules.
        figures: where requests are counted.
        audit: told of acts that are refused.
    """

    def __init__(
        self, verbs: Sequence[Verb], access: AccessRules, figures: HttpFigures, audit: "Audit"
    ) -> None:
        self._verbs = verbs
        self._access = access
        self._figures = figures
        self._audit = audit
        self._guesses = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI has it."""
        verb, allowed = self._find(scope)
        answer = _Answer(send, self._figures, _counted_as(verb))
        try:
            scope["operator"] = await self._admit(verb, scope)
            await (verb.handle if verb else _not_there(allowed))(scope, receive, answer)
        except ApiError as error:
            if error.reason:
                self._figures.refused(error.reason)
            await answer.fail(error, scope, receive)
        except Exception:
            log.exception("admin request failed", path=verb.template if verb else None)
            await answer.fail(ApiError(500, "internal", "see the server's log"), scope, receive)

    def _find(self, scope: Scope) -> tuple[Verb | None, list[str]]:
        """Return the verb that a request means, else the methods that there are for its path.

        What the path holds is added to the scope.
        """
        allowed: list[str] = []
        for verb in self._verbs:
            match, found = verb.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return verb, []
            if match is Match.PARTIAL:
                allowed += sorted(verb.methods or ())
        return None, allowed

    async def _admit(self, verb: Verb | None, scope: Scope) -> OperatorToken:
        """Return who asks.

        Raises:
            ApiError: he may not.
        """
        headers = header_map(scope)
        try:
            return self._access.admit(verb.need if verb else "read", headers)
        except ApiError as refused:
            if verb is not None and verb.act:
                self._audit.refused(scope, verb.act, refused.code, self._access.known(headers) or NOBODY)
            if refused.code == "wrong_token":
                await self._slow_down()
            raise

    async def _slow_down(self) -> None:
        """Wait, so that nobody guesses quickly.

        Raises:
            ApiError: enough wait already.
        """
        if self._guesses >= GUESSES_MAX:
            message = "too many wrong tokens at once"
            raise ApiError(429, "too_many_guesses", message, reason="guesses", retry_after=1)
        self._guesses += 1
        try:
            await trio.sleep(GUESS_DELAY_S)
        finally:
            self._guesses -= 1


class _Answer:
    """Passes an answer on, with the headers that every one has, and counts it.

    Args:
        send: where it goes.
        figures: where it is counted.
        counted_as: the template of its path.
    """

    def __init__(self, send: Send, figures: HttpFigures, counted_as: str) -> None:
        self._send = send
        self._figures = figures
        self._counted_as = counted_as
        self._asked_at = trio.current_time()
        self._is_begun = False

    async def __call__(self, message: Message) -> None:
        """Send a part."""
        if message["type"] == "http.response.start":
            self._is_begun = True
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            took_s = trio.current_time() - self._asked_at
            self._figures.answered(self._counted_as, message["status"], took_s)
        await self._send(message)

    async def fail(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        """Send an error, unless an answer has begun."""
        if not self._is_begun:
            await error.response()(scope, receive, self)


def _counted_as(verb: Verb | None) -> str:
    if verb is None:
        return OTHER
    return "/static" if verb.template.startswith("/static") else verb.template


def _not_there(allowed: list[str]) -> ASGIApp:
    if not allowed:
        return not_found().response()
    methods = ", ".join(allowed)
    message = f"this path takes {methods}"
    return ApiError(405, "wrong_method", message, headers={"Allow": methods}).response()


def operator_of(scope: Any) -> OperatorToken:
    """Return who asks, of a request that was let in."""
    operator: OperatorToken = scope["operator"]
    return operator


class Audit:
    """Writes the lines, and counts.

    Args:
        figures: where acts are counted.
    """

    def __init__(self, figures: HttpFigures) -> None:
        self._figures = figures
        self._refusals: KeyedRateLimiter[str] = KeyedRateLimiter(REFUSED_PER_S, REFUSED_BURST)
        self._unsaid = 0

    def acted(
        self,
        operator: OperatorToken,
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
        level = log.info if outcome == "done" else log.warning
        level(
            "audit",
            operator=operator.name,
            role=operator.role if operator is not NOBODY else "none",
            peer=_peer(scope),
            action=verb,
            uid=uid,
            device=device,
            outcome=outcome,
            **details,
        )

    def refused(
        self, scope: Mapping[str, Any], verb: str, code: str, operator: OperatorToken = NOBODY
    ) -> None:
        """Tell that somebody wanted to act and was not let; beyond some a second it is only counted."""
        if not self._refusals.take("", trio.current_time()):
            self._figures.acted(verb, "refused")
            self._unsaid += 1
            return
        unsaid, self._unsaid = self._unsaid, 0
        self.acted(operator, scope, verb, "refused", reason=code, suppressed=unsaid)


def _peer(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "unknown"
