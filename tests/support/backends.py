"""Tests of the libraries on asyncio and on trio, in virtual time or real."""

import asyncio
import inspect
import selectors
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
import sniffio
import trio
import trio.testing

BACKENDS = ("asyncio", "trio")


class AutojumpSelector(selectors.DefaultSelector):
    """Jumps to the next deadline instead of waiting, as trio's `MockClock` does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class AutojumpLoop(asyncio.SelectorEventLoop):
    """An event loop of asyncio in virtual time; without threads and other processes."""

    def __init__(self) -> None:
        self._clock = AutojumpSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_on(backend: str, test: Callable[[], Awaitable[None]], *, autojump: bool) -> None:
    """Run a test on a backend, in virtual time or real."""
    options: dict[str, Any] = {}
    if autojump and backend == "trio":
        options["clock"] = trio.testing.MockClock(autojump_threshold=0)
    elif autojump:
        options["loop_factory"] = AutojumpLoop
    anyio.run(test, backend=backend, backend_options=options)


def on_both_backends(*, autojump: bool = False) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Run an async test on asyncio and on trio; `autojump`: in virtual time."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Any:
        def run(backend: str, **fixtures: Any) -> None:
            run_on(backend, partial(test, **fixtures), autojump=autojump)

        signature = inspect.signature(test)
        backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY)
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            setattr(run, name, getattr(test, name))
        run.__dict__.update(test.__dict__)
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), backend], return_annotation=None
        )
        return pytest.mark.parametrize("backend", BACKENDS)(run)

    return decorate


def living_tasks() -> int:
    """Return the number of tasks of the running event loop."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
