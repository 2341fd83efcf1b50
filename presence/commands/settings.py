"""``presence config``: which settings are in effect, from where, and whether they are sound."""

import json

from presence.commands.outcome import OK
from presence.config import RULES, SPECS, Loaded, shown
from presence.rendering import printable


def show(loaded: Loaded, *, as_json: bool) -> int:
    """Print every setting with its source; without `as_json` as TOML that a file could hold."""
    values = {name: shown(loaded.settings, name) for name in SPECS}
    if as_json:
        rules = loaded.settings.followups
        tables = None if rules is None else [rule.as_table() for rule in rules]
        rows = {
            name: {"value": value, "source": loaded.sources[name]}
            for name, value in {**values, RULES: tables}.items()
        }
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
    _show_rules(loaded, width)
    return OK


def _show_rules(loaded: Loaded, width: int) -> None:
    """Print the rules of follow-ups: tables, which have to come last in a file."""
    rules, source = loaded.settings.followups, printable(loaded.sources[RULES])
    if not rules:
        line = f"# {RULES} is not set" if rules is None else f"{RULES} = []"
        print(f"{line:<{width}}  # {source}")
    for rule in rules or ():
        print(f"\n{f'[[{RULES}]]':<{width}}  # {source}")
        for key, value in rule.as_table().items():
            print(f"{key} = {json.dumps(value)}")


def check() -> int:
    """Say that the settings, which were loaded without a complaint, are sound."""
    print("ok")
    return OK
