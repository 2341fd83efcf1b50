"""Imports handlers of follow-ups: plain functions, named as ``module:function``."""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any


class HandlerError(Exception):
    """The handler cannot be imported or cannot be called with a follow-up; the message says why."""


def load(name: str) -> Callable[[Any], Any]:
    """Import a handler by its name; the working directory is searched, too.

    Raises:
        HandlerError: it does not exist, its import failed, or it is not a plain function of one argument.
    """
    if not all(name.partition(":")):
        raise HandlerError(f"handler {name!r} must be module:function, such as shop.mails:remind")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Any = pkgutil.resolve_name(name)
    except Exception as error:  # a module may raise anything when imported
        raise HandlerError(f"handler {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise HandlerError(f"handler {name} is a {type(function).__name__}, and no function")
    if any(map(inspect.iscoroutinefunction, (function, function.__call__))):
        raise HandlerError(f"handler {name} must be a plain function")
    try:
        inspect.signature(function).bind(object())
    except TypeError as error:
        raise HandlerError(f"handler {name} cannot be called with a follow-up alone: {error}") from None
    except ValueError:  # a builtin without a signature
        pass
    return function  # type: ignore[no-any-return]
