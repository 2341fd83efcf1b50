"""``python -m loadtest.unguarded GUARD serve …``: `presence` with one of its guards switched off.

For the negative controls of a run: what speaks for the checker is that it finds what this breaks. A guard is
off by another text of a script, or by another method. One process only: workers of its own have all guards.
"""

import hashlib
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

from presence.core.engine import Engine
from presence.core.expiry import Expiry
from presence.server import node_assembly
from presence.server.ticker import Ticker
from presence.store import script_runner

Changes = tuple[tuple[str, str], ...]
"""Parts of the scripts' texts, and what stands in their place."""

SCRIPTS: Final[dict[str, Changes]] = {
    "session-compare": (
        ("if its_device == device and its_session == session then", "if true then"),
        (
            "if present and present.session == session then\n    remove_session",
            "if present then\n    remove_session",
        ),
    ),
    "certificate+fence": (
        (
            "redis.call('ZSCORE', tombs_key, node) or (row and string.find(row, ' ', 1, true))",
            "false",
        ),
        ("if counter[4] then return refuse('fenced', present_generation) end", ""),
        ("if counter[2] then return refuse('fenced', present) end", ""),
        ("fenced = counter[3] and true or false", "fenced = false"),
    ),
    "script-decides-transitions": (
        ("if not record then\n    local id", "if op == 'login' or not record then\n    local id"),
        ("record = {id = id,", "record = record or {id = id,"),
    ),
}
CHANGED_SCRIPTS: Final = ("apply", "sweep", "retire", "probe", "lease")
READ_BEFORE_EXPIRY: Final = "read-before-expiry"
GUARDS: Final = (*SCRIPTS, READ_BEFORE_EXPIRY)
# Of a server that was stopped and goes on; not for chaos, which never stops a server for so long.
STALL_GUARD: Final = "stall"
WITHOUT_STALL_GUARD: Final = ("-m", "loadtest.unguarded", STALL_GUARD)


def switch_off(guard: str) -> None:
    """Switch a guard off in this process.

    Raises:
        ValueError: a script no longer has the text of the guard.
    """
    if guard == STALL_GUARD:
        vars(node_assembly).update(
            Engine=partial(Engine, poll_before_expiry=False), Ticker=partial(Ticker, credit=False)
        )
        return
    if guard == READ_BEFORE_EXPIRY:
        Expiry.poll = lambda *_: False  # type: ignore[method-assign]
        return
    source = _changed(script_runner.source, SCRIPTS[guard])
    if absent := missing_texts(guard):
        raise ValueError(f"no script has {absent}")

    @cache
    def digest(name: str) -> str:
        return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()

    script_runner.source = source
    script_runner.digest = digest


def missing_texts(guard: str) -> list[str]:
    """Return the texts to replace for a guard that no script contains."""
    return [
        old
        for old, _ in SCRIPTS[guard]
        if not any(old in script_runner.source(name) for name in CHANGED_SCRIPTS)
    ]


def _changed(source: Callable[[str], str], changes: Changes) -> Any:
    @cache
    def changed(name: str) -> str:
        text = source(name)
        for old, new in changes:
            text = text.replace(old, new)
        return text

    return changed


def main() -> int:
    switch_off(sys.argv[1])
    from presence.cli.main import main as presence  # noqa: PLC0415 - after the guard is off

    return presence(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
