"""What may be asked: a method, a path, and what it takes."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from presence.admin.access import Need

Handler = Callable[[Request], Awaitable[Response]]
_CONVERTERS: Final = {"{uid}": "{uid:path}", "{file}": "{file:path}"}  # a uid may hold a slash


class Verb(NamedTuple):
    """Something that may be asked.

    Attributes:
        method: ``GET`` (``HEAD`` is then answered, too) or ``POST``.
        path: as the description of the interface has it.
        need: what it takes.
        handler: who answers.
        act: what the log calls it, if it changes anything.
    """

    method: str
    path: str
    need: Need
    handler: Handler
    act: str | None = None


class Table:
    """The verbs, and which one a request means.

    Args:
        verbs: all of them.

    Attributes:
        verbs: as given.
        routes: of each verb, in the same order.
    """

    def __init__(self, verbs: Iterable[Verb]) -> None:
        self.verbs = list(verbs)
        self.routes = [_route(verb) for verb in self.verbs]

    def find(self, scope: dict[str, Any]) -> tuple[Verb | None, Route | None, list[str]]:
        """Return the verb and its route; else the methods that there are for this path.

        What the path holds is added to the scope.
        """
        allowed: list[str] = []
        for verb, route in zip(self.verbs, self.routes, strict=True):
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return verb, route, []
            if match is Match.PARTIAL:
                allowed += sorted(route.methods or ())
        return None, None, allowed


def header_map(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request; of two that are alike both, with a comma between."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _route(verb: Verb) -> Route:
    path = verb.path
    for plain, converted in _CONVERTERS.items():
        path = path.replace(plain, converted)
    return Route(path, verb.handler, methods=[verb.method])
