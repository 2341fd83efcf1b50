"""``presence config``: shows the effective settings and their sources, or checks them.

Tests: `tests/config/test_loader.py`, `tests/cli/test_main.py`.
"""

import argparse
import json

from presence.cli.errors import OK
from presence.cli.options import Load, add_json, add_settings
from presence.cli.serve import check_files
from presence.common.text import printable
from presence.config.loader import FIELDS, RULES, Loaded, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|check")
    show = actions.add_parser("show", help="print each effective setting and its source")
    add_json(show, "one JSON object: name to value and source")
    check = actions.add_parser("check", help="exit with 0 if serve would accept the settings, 2 if not")
    for each in (show, check):
        add_settings(each, tuple(FIELDS))


def run(args: argparse.Namespace, load: Load) -> int:
    loaded = load()
    if args.action == "show":
        return show(loaded, as_json=args.json)
    check_files(loaded)
    print("ok")
    return OK


def show(loaded: Loaded, *, as_json: bool) -> int:
    """Print every setting with its source; as valid TOML unless `as_json`."""
    values = {name: shown(loaded.settings, name) for name in FIELDS}
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
    print(f"# settings file: {printable(loaded.file or 'none')}")
    for name, line in lines.items():
        print(f"{line:<{width}}  # {printable(loaded.sources[name])}")
    _show_rules(loaded, width)
    return OK


def _show_rules(loaded: Loaded, width: int) -> None:
    """Print the rules of follow-ups: tables, which must come last in a TOML file."""
    rules, source = loaded.settings.followups, printable(loaded.sources[RULES])
    if not rules:
        line = f"# {RULES} is not set" if rules is None else f"{RULES} = []"
        print(f"{line:<{width}}  # {source}")
    for rule in rules or ():
        print(f"\n{f'[[{RULES}]]':<{width}}  # {source}")
        for key, value in rule.as_table().items():
            print(f"{key} = {json.dumps(value)}")
