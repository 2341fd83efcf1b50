"""Serves the page of `examples/web_roster` to browsers of this machine, and opens it.

Tests: `tests/demo/test_web_roster.py`, `tests/system/demo/test_web_roster.py`.
"""

import os
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlencode

_PAGE = Path(__file__).with_name("web_roster.html")
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # environment variables
_POLL_S = 0.05  # how long the end of the server may take


@contextmanager
def serving_page(websocket: tuple[str, int], watched: Sequence[str]) -> Iterator[str]:
    """Serve the page for the length of a ``with`` block; the value is its URL.

    Args:
        websocket: host and port that the page connects to.
        watched: the users whom it watches.
    """
    page = _PAGE.read_bytes()
    query = urlencode({"server": "ws://{}:{}/".format(*websocket), "watch": ",".join(watched)})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":  # what is printed is short
                self.send_response(302)
                self.send_header("Location", f"/?{query}")
                self.end_headers()
            elif self.path.startswith("/?"):
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(page)
            else:
                self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


def open_in_browser(url: str) -> None:
    """Open a URL in the user's browser, if this machine has a screen: others may have one for terminals."""
    if sys.platform in {"darwin", "win32"} or any(os.environ.get(name) for name in _DISPLAYS):
        webbrowser.open(url)
