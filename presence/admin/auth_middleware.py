"""Authenticates and authorises each request, counts it, and logs actions.

Every request passes through here. A request without an endpoint needs the role to read, so that nothing new
is open by mistake.

Tests: `tests/admin/test_access.py`.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

import structlog
import trio
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from presence.admin.access import NO_OPERATOR, AccessRules
from presence.admin.http_metrics import OTHER, HttpMetrics
from presence.admin.responses import ApiError, not_found
from presence.auth.operator_tokens import OperatorToken, Role
from presence.common.faults import LOG_INTERVAL_S
from presence.common.logs import RateLimited
from presence.common.networks import limit_key
from presence.common.rate_limit import KeyedRateLimiter
from presence.common.scarcity import fault_fields

# Wrong tokens of an address; then it gets 429, also with a right one, which would tell it from wrong ones.
GUESSES_PER_S: Final = 0.2  # 17,000 a day; a program with an old token that asks every 15 s gets no 429
GUESSES_BURST: Final = 20
MAX_GUESSERS: Final = 10_000  # addresses, some 2 MB

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
REFUSALS_LOGGED_PER_S: Final = 2.0  # refused actions, so that strangers cannot fill the log
REFUSALS_LOGGED_BURST: Final = 50.0

Outcome = Literal["done", "failed", "refused"]

log = structlog.get_logger("presence.admin")

Handler = Callable[[Request], Awaitable[Response]]


class _AnyText(PathConvertor):
    """Any text: a uid may contain a slash, and one with a line feed is refused as a uid, not as a path."""

    regex = "(?s:.*)"


register_url_convertor("text", _AnyText())
_CONVERTERS: Final = {"{uid}": "{uid:text}", "{name}": "{name:text}", "{file}": "{file:path}"}


class Endpoint(Route):
    """An endpoint: a method, ``GET`` (which also answers ``HEAD``) or ``POST``, and a path.

    `template` is the path as in the OpenAPI description, `need` the required role (None: open to everyone),
    `act` its name in the log, if it changes anything.
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
    """Return the headers of a request; repeated ones joined by a comma."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


class AuthMiddleware:
    """The application: authorises each request, counts it, and passes it to its endpoint."""

    def __init__(
        self, endpoints: Sequence[Endpoint], access: AccessRules, metrics: HttpMetrics, audit: "Audit"
    ) -> None:
        self._endpoints = endpoints
        self._access = access
        self._metrics = metrics
        self._audit = audit
        self._log = RateLimited(log, interval_s=LOG_INTERVAL_S)
        self._guesses: KeyedRateLimiter[str] = KeyedRateLimiter(GUESSES_PER_S, GUESSES_BURST, MAX_GUESSERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint, allowed = self._find(scope)
        answer = _CountedResponse(send, self._metrics, _counted_as(endpoint))
        try:
            scope["operator"] = operator = self._admit(endpoint, scope)
            answer.is_last = operator is NO_OPERATOR
            await (endpoint.handle if endpoint else _no_endpoint(allowed))(scope, receive, answer)
        except ApiError as error:
            if error.reason:
                self._metrics.count_refusal(error.reason)
            await answer.fail(error, scope, receive)
        except Exception as error:
            path = endpoint.template if endpoint else None
            self._log.error("admin request failed", path=path, **fault_fields(error))
            await answer.fail(ApiError(500, "internal", "see the server's log"), scope, receive)

    def _find(self, scope: Scope) -> tuple[Endpoint | None, list[str]]:
        """Return the endpoint of a request, or the methods that its path supports.

        Path parameters are added to the scope.
        """
        allowed: list[str] = []
        for endpoint in self._endpoints:
            match, found = endpoint.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return endpoint, []
            if match is Match.PARTIAL:
                allowed += sorted(endpoint.methods or ())
        return None, allowed

    def _admit(self, endpoint: Endpoint | None, scope: Scope) -> OperatorToken:
        """Return the operator of a request.

        Raises:
            ApiError: the operator lacks the role, or is unknown.
        """
        headers = header_map(scope)
        need = endpoint.need if endpoint else "read"
        try:
            if need is not None and "authorization" in headers:
                self._check_guesses(scope)
            return self._access.admit(need, headers)
        except ApiError as refused:
            if endpoint is not None and endpoint.act:
                self._audit.log_refusal(
                    scope, endpoint.act, refused.code, self._access.identify(headers) or NO_OPERATOR
                )
            if refused.code == "wrong_token":
                self._guesses.take(_address(scope), trio.current_time())
            raise

    def _check_guesses(self, scope: Scope) -> None:
        """Refuse an address that has sent too many wrong tokens, so that guessing is slow.

        Raises:
            ApiError: it has.
        """
        address, now = _address(scope), trio.current_time()
        if not self._guesses.has(address, now):
            after = math.ceil(self._guesses.wait_s(address, now))
            message = "too many wrong tokens from this address"
            raise ApiError(429, "too_many_guesses", message, reason="guesses", retry_after=after)


class _CountedResponse:
    """Forwards a response with the common headers, and counts it under the template of its path.

    Attributes:
        is_last: whether the connection is closed after it, so that strangers cannot fill its buffers with
            responses that they do not read, and keep its place.
    """

    def __init__(self, send: Send, metrics: HttpMetrics, counted_as: str) -> None:
        self._send = send
        self._metrics = metrics
        self._counted_as = counted_as
        self._asked_at = trio.current_time()
        self._is_begun = False
        self.is_last = True  # until an operator is admitted

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_begun = True
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self.is_last:
                headers["Connection"] = "close"
            took_s = trio.current_time() - self._asked_at
            self._metrics.count_request(self._counted_as, message["status"], took_s)
        await self._send(message)

    async def fail(self, error: ApiError, scope: Scope, receive: Receive) -> None:
        """Send an error, unless a response has begun."""
        if not self._is_begun:
            await error.response()(scope, receive, self)


def _address(scope: Mapping[str, Any]) -> str:
    """Return the address of a client as limits count it; clients without one share a limit."""
    client = scope.get("client")
    return limit_key(client[0]) if client else ""


def _counted_as(endpoint: Endpoint | None) -> str:
    if endpoint is None:
        return OTHER
    return "/static" if endpoint.template.startswith("/static") else endpoint.template


def _no_endpoint(allowed: list[str]) -> ASGIApp:
    if not allowed:
        return not_found().response()
    methods = ", ".join(allowed)
    message = f"this path takes {methods}"
    return ApiError(405, "wrong_method", message, headers={"Allow": methods}).response()


def operator_of(scope: Any) -> OperatorToken:
    """Return the operator of an authorised request."""
    operator: OperatorToken = scope["operator"]
    return operator


class Audit:
    """Logs and counts actions."""

    def __init__(self, metrics: HttpMetrics) -> None:
        self._metrics = metrics
        self._refusals: KeyedRateLimiter[str] = KeyedRateLimiter(REFUSALS_LOGGED_PER_S, REFUSALS_LOGGED_BURST)
        self._unlogged = 0

    def log_action(
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
        """Log an action of an operator; without a device it concerns all devices of the user."""
        self._metrics.count_action(verb, outcome)
        (log.info if outcome == "done" else log.warning)(
            "audit",
            operator=operator.name,
            role=operator.role if operator is not NO_OPERATOR else "none",
            peer=_peer(scope),
            action=verb,
            uid=uid,
            device=device,
            outcome=outcome,
            **details,
        )

    def log_refusal(
        self, scope: Mapping[str, Any], verb: str, code: str, operator: OperatorToken = NO_OPERATOR
    ) -> None:
        """Log a refused action; beyond a rate limit it is only counted."""
        if not self._refusals.take("", trio.current_time()):
            self._metrics.count_action(verb, "refused")
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        self.log_action(operator, scope, verb, "refused", reason=code, suppressed=unlogged)


def _peer(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else "unknown"
