"""What becomes of a callback that failed, or that is async: nobody else is harmed, and nothing is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

import structlog
import trio

ErrorHandler = Callable[[Exception, Callable[..., object]], None]

ASYNC_MAX: Final = 1_000  # tasks of async callbacks at once: some 5 MB

_log = structlog.get_logger(__name__)


def log_error(error: Exception, callback: Callable[..., object]) -> None:
    """Log what a callback raised, with its traceback."""
    _log.error("timer callback failed", callback=_name(callback), exc_info=error)


class Callbacks:
    """Runs async callbacks as tasks, at most `limit` at once, and hands errors to `on_error`.

    At the limit a callback waits in line, first come first served: it is late, and never lost. What it
    raises, an `Exception`, goes to `on_error`; what `on_error` raises is logged and counted. Cancellation,
    and whatever else is no `Exception`, goes to the nursery.

    Args:
        nursery: where the tasks run.
        limit: tasks at once.
        on_error: gets the error and the callback.
        begun: told when one that waited in line begins.

    Attributes:
        running: tasks that run.
        held: callbacks that wait in line.
        errors: callbacks that raised.
        handler_errors: how often `on_error` itself raised.
    """

    def __init__(
        self, nursery: trio.Nursery, limit: int, on_error: ErrorHandler, begun: Callable[[], None]
    ) -> None:
        self._nursery = nursery
        self._limit = limit
        self._on_error = on_error
        self._begun = begun
        self.held: deque[tuple[Callable[..., object], Coroutine[Any, Any, object]]] = deque()
        self.running = self.errors = self.handler_errors = 0

    def start(self, fn: Callable[..., object], coroutine: Coroutine[Any, Any, object]) -> bool:
        """Run what an async callback returned; False: it waits in line."""
        if self.running < self._limit:
            self._run_soon(fn, coroutine)
            return True
        self.held.append((fn, coroutine))
        return False

    def failed(self, error: Exception, fn: Callable[..., object]) -> None:
        """Hand over what a callback raised; raise nothing."""
        self.errors += 1
        try:
            self._on_error(error, fn)
        except Exception as second:
            self.handler_errors += 1
            with suppress(Exception):
                _log.error("the handler of timer errors failed", callback=_name(fn), exc_info=second)

    def close(self) -> None:
        """Forget those that wait in line: one that runs may still end, and must find nobody."""
        while self.held:
            self.held.pop()[1].close()

    def _run_soon(self, fn: Callable[..., object], coroutine: Coroutine[Any, Any, object]) -> None:
        self.running += 1
        self._nursery.start_soon(self._run, fn, coroutine, name=_name(fn))

    async def _run(self, fn: Callable[..., object], coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except Exception as error:
            self.failed(error, fn)
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                self.failed(errors, fn)
            if rest is not None:
                raise rest from None
        finally:
            self.running -= 1
        if self.held:
            self._run_soon(*self.held.popleft())
            self._begun()


def _name(callback: Callable[..., object]) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
