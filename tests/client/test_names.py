"""The names of errors, pushes and options are those of the table that all client libraries share."""

import json
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, get_args

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


def test_the_pushes_and_their_fields_are_those_of_the_table() -> None:
    pushes = {each.__name__: [field.name for field in fields(each)] for each in get_args(client.Push)}
    assert pushes == TABLE["pushes"]


def test_the_results_and_their_fields_are_those_of_the_table() -> None:
    results = {name: [field.name for field in fields(getattr(client, name))] for name in TABLE["results"]}
    assert results == TABLE["results"]


def test_the_options_are_those_of_the_table_and_what_is_pythons_own() -> None:
    own = {"wait", "options", "open_stream"}
    faces = {frozenset(signature(face).parameters) for face in (client.connect, client.connect_blocking)}
    (arguments,) = faces
    options = {field.name for field in fields(client.ClientOptions)}
    assert not arguments & options
    assert (arguments | options) - own == set(TABLE["options"])


def test_both_faces_have_the_same_methods() -> None:
    def methods(face: type) -> set[str]:
        return {name for name in vars(face) if not name.startswith("_")}

    only_async = {"aclose", "receive_nowait"}  # `close`; `receive` with a time-out of 0
    assert methods(client.Client) - only_async == methods(client.BlockingClient) - {"close"}


def test_the_table_says_which_fields_are_seconds() -> None:
    names = {name for push in TABLE["pushes"].values() for name in push} | set(TABLE["options"])
    assert set(TABLE["seconds"]) <= names
