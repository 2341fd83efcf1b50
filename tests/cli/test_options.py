"""Types of arguments: what may log in can be named."""

import argparse

import pytest

from presence.cli.options import Parser, device_argument, uid_argument
from presence.common.text import printable
from tests.support.odd_inputs import NAMES, NO_NAMES, devices


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_uid_of_the_protocol_is_one_for_commands_as_it_is_and_as_it_is_shown(name: str) -> None:
    assert uid_argument(name) == name
    assert uid_argument(printable(name)) == name


@pytest.mark.parametrize("name", devices().values(), ids=devices())
def test_a_device_of_the_protocol_is_one_for_commands(name: str) -> None:
    assert device_argument(printable(name)) == name


def test_a_name_of_two_dashes_can_be_given_to_a_flag_and_after_the_flags() -> None:
    parser = Parser()
    parser.add_argument("--uid", type=uid_argument)
    parser.add_argument("names", nargs="*", type=uid_argument)
    parsed = parser.parse_args(["--uid=--", "--", "--", "--uid=--"])
    assert (parsed.uid, parsed.names) == ("--", ["--", "--uid=--"])


@pytest.mark.parametrize("name", NO_NAMES.values(), ids=NO_NAMES)
def test_what_the_protocol_refuses_as_a_uid_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a valid uid: it"):
        uid_argument(name)
