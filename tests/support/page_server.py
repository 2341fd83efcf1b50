"""An HTTP server of a few files, for pages of tests in a browser."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

POLL_S = 0.05  # how long its end may take


@contextmanager
def serving_files(files: Mapping[str, tuple[str, Callable[[], bytes]]]) -> Iterator[str]:
    """Serve files, by path, for the length of a ``with`` block; the value is the URL of the path /.

    Each has a type, and a function that makes its content for one request.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in files:
                self.send_error(404)
                return
            kind, content = files[self.path]
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(content())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
