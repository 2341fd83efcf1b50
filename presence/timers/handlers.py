"""Handlers: functions called with each due event, named as ``module:function``."""

import inspect
import os
import pkgutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from presence.timers.interface import Due, check_delay

Function = Callable[[Due], Any]
"""Takes an event; its result is ignored. An exception means that the event was not handled."""


class HandlerError(Exception):
    """The handler cannot be imported or cannot be called with an event; the message says why."""


class RetryLater(Exception):
    """Raised by a handler to get the event again later; this counts as an attempt.

    It is not a failure and no traceback is logged, but an event postponed as often as the timer has attempts
    becomes a dead letter.

    Args:
        delay_s: seconds; None: a pause that doubles with each attempt.

    Raises:
        TimerError: the delay is out of bounds; then the handler has failed.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        if delay_s is not None:
            check_delay(delay_s)
        super().__init__("put off")
        self.delay_s = delay_s


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that handles events."""

    name: str  # ``module:function``, or the function's name
    function: Function  # a plain function, called in a thread, or an ``async def``, which runs on trio
    is_async: bool  # which of the two

    def call(self, due: Due) -> None:
        """Call a plain function; its exceptions propagate.

        Raises:
            TypeError: it returned an awaitable, so nothing was done.
        """
        answer = self.function(due)
        if isinstance(answer, Awaitable):
            if inspect.iscoroutine(answer):
                answer.close()
            raise TypeError(f"{self.name} returned something to await: make it an async def")


def handler(function: Function, name: str = "") -> Handler:
    """Return a function as a handler.

    Raises:
        HandlerError: it cannot be called with one argument.
    """
    name = name or getattr(function, "__qualname__", repr(function))
    if not callable(function):
        raise HandlerError(f"{name} is a {type(function).__name__}, and no function")
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise HandlerError(f"{name} cannot be called with an event alone: {error}") from None
    except ValueError:  # a builtin without a signature
        pass
    inner: Any = getattr(function, "func", function)  # of functools.partial
    called = inner if inspect.isroutine(inner) else inner.__call__
    return Handler(name, function, inspect.iscoroutinefunction(called))


def load(name: str) -> Handler:
    """Import a handler by its name; the working directory is searched, too.

    Raises:
        HandlerError: it does not exist, or its import failed.
    """
    if not all(name.partition(":")):
        raise HandlerError(f"handler {name!r} must be module:function, such as shop.orders:lapse")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return handler(pkgutil.resolve_name(name), name)
    except HandlerError:
        raise
    except Exception as error:  # a module may raise anything when imported
        raise HandlerError(f"handler {name}: {type(error).__name__}: {error}") from error
