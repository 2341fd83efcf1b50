"""Responses: valid ASCII JSON whatever the data, and errors as ``{"error": {"code": …, "message": …}}``.

Tests: `tests/admin/test_events.py`, `tests/admin/test_views.py`.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from presence.common.redaction import redact_text

NO_STORE = {"Cache-Control": "no-store"}


def to_json(value: Any) -> bytes:
    """Return plain data as JSON on one line; infinite numbers and NaN become null."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"))
    return text.encode()


def json_answer(value: Any, status: int = 200) -> Response:
    """Return a JSON response that is not cached."""
    return Response(to_json(value), status, NO_STORE, "application/json")


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


RETRY_AFTER_S: Final = 2  # short outages of Redis are over by then


class ApiError(Exception):
    """A request that is refused or failed; `code` is for programs, `message` for people, without secrets.

    `reason`: of `presence.admin.http_metrics.REFUSALS`, if an access rule or a limit refused it.
    `retry_after`: seconds.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        reason: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})
        self.reason = reason
        self.retry_after = retry_after

    def response(self) -> JSONResponse:
        body: dict[str, object] = {"code": self.code, "message": self.message}
        headers = {"Cache-Control": "no-store", **self.headers}
        if self.retry_after is not None:
            body["retry_after"] = self.retry_after
            headers["Retry-After"] = str(self.retry_after)
        return JSONResponse({"error": body}, self.status, headers)


def bad_request(code: str, message: str) -> ApiError:
    return ApiError(400, code, message)


def not_found() -> ApiError:
    """Return the error of an unknown path."""
    return ApiError(404, "not_found", "there is nothing at this path: see /openapi.json")


def busy(message: str) -> ApiError:
    """Return the error of a request beyond a concurrency limit."""
    return ApiError(503, "busy", message, retry_after=RETRY_AFTER_S)


def redis_away(error: BaseException | str) -> ApiError:
    """Return the error of a request that needs Redis while it is unreachable."""
    return ApiError(503, "redis_away", redact_text(str(error)) or "no answer", retry_after=RETRY_AFTER_S)


def redis_refuses(error: BaseException) -> ApiError:
    """Return the error of a request that Redis refuses, or for which it holds invalid data."""
    return ApiError(503, "redis_refused", redact_text(str(error)), retry_after=RETRY_AFTER_S)
