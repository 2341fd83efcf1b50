"""What operators are answered."""

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from presence.admin.context import Context


class App:
    """The application, and the tasks beside it.

    Attributes:
        asgi: what answers requests.
    """

    def __init__(self, context: Context) -> None:
        self.asgi: ASGIApp = Starlette(routes=[Route("/healthz", _healthz)])

    async def run(self) -> None:
        """Run all tasks until cancelled."""
        await trio.sleep_forever()

    def reload(self) -> None:
        """Have files read again."""


def make_app(context: Context) -> App:
    """Return the application."""
    return App(context)


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")
