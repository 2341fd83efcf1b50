"""``presence config``: which settings are in effect, from where, and whether they are sound."""

import json

from presence.commands.outcome import OK
from presence.config import SPECS, Loaded, shown
from presence.rendering import printable


def show(loaded: Loaded, *, as_json: bool) -> int:
    """Print every setting with its source; without `as_json` as TOML that a file could hold."""
    values = {name: shown(loaded.settings, name) for name in SPECS}
    if as_json:
        rows = {name: {"value": value, "source": loaded.sources[name]} for name, value in values.items()}
        print(json.dumps(rows, indent=2))
        return OK
    lines = {
        # JSON's numbers, booleans and ASCII strings are TOML's too; TOML has no null.
        name: f"# {name} is not set" if value is None else f"{name} = {json.dumps(value)}"
        for name, value in values.items()
    }
    width = max(map(len, lines.values()))
    for name, line in lines.items():
        print(f"{line:<{width}}  # {printable(loaded.sources[name])}")
    return OK


def check() -> int:
    """Say that the settings, which were loaded without a complaint, are sound."""
    print("ok")
    return OK
