"""The names of errors, pushes and options are those of the table that all client libraries share."""

import json
from pathlib import Path
from typing import Any

from presence import client
from presence.client.errors import ENDED, FAILED

TABLE: dict[str, Any] = json.loads(
    Path(__file__).parents[2].joinpath("protocol/clients/names.json").read_text()
)


def exported(base: type) -> dict[str, type]:
    """Return the exported classes below a base, by name."""
    found = {name: getattr(client, name) for name in client.__all__}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, base)}


def test_the_errors_and_their_parents_are_those_of_the_table() -> None:
    errors = exported(client.PresenceError)
    parents = {
        name: next((base.__name__ for base in each.__mro__[1:] if base in errors.values()), None)
        for name, each in errors.items()
    }
    assert parents == {name: error["parent"] for name, error in TABLE["errors"].items()}


def test_each_code_of_the_table_leads_to_its_error() -> None:
    codes = {int(code): error.__name__ for code, error in (FAILED | ENDED).items()}
    assert codes == {code: name for name, error in TABLE["errors"].items() for code in error["codes"]}
