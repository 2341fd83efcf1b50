"""JSON of answers: always ASCII, and always JSON, whatever clients and Redis have said."""

import json
import math
from typing import Any

from starlette.responses import Response

NO_STORE = {"Cache-Control": "no-store"}


def to_json(value: Any) -> bytes:
    """Return plain data as JSON on one line; a number that JSON cannot say becomes null."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"))
    return text.encode()


def json_answer(value: Any, status: int = 200) -> Response:
    """Return an answer that nobody keeps."""
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
