"""The files of the live page, and the OpenAPI 3.1 description in ``openapi.json``.

All are read once at the start of the process, so that no requested path opens a file.

Tests: `tests/admin/test_prometheus.py`, `tests/system/admin/test_page.py`.
"""

import hashlib
import json
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from presence import __version__
from presence.admin.responses import ApiError, json_answer

FOLDER: Final = Path(__file__).parent / "page"
OPENAPI: Final = Path(__file__).parent / "openapi.json"
INDEX: Final = "index.html"
_TYPES: Final = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def description() -> dict[str, Any]:
    """Return the OpenAPI description with this version."""
    found: dict[str, Any] = json.loads(OPENAPI.read_text("utf-8"))
    return {**found, "info": {**found["info"], "version": __version__}}


class PageFiles:
    """Serves the files of a folder."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith(".")
        }
        self._description = description()
        self._tags = {
            name: f'"{hashlib.sha256(data).hexdigest()[:24]}"' for name, data in self._files.items()
        }

    async def index(self, request: Request) -> Response:
        return self._response(INDEX, request)

    async def file(self, request: Request) -> Response:
        return self._response(request.path_params["file"], request)

    async def describe(self, _request: Request) -> Response:
        return json_answer(self._description)

    def _response(self, name: str, request: Request) -> Response:
        if name not in self._files:
            raise ApiError(404, "not_found", "there is no such file")
        headers = {"Cache-Control": "no-cache", "ETag": self._tags[name]}
        if self._tags[name] in request.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        kind = _TYPES.get(Path(name).suffix) or guess_type(name)[0] or "application/octet-stream"
        return Response(self._files[name], 200, headers, kind)
