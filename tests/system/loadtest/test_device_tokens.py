"""A command that prints tokens: each device gets one, or hears why not."""

from argparse import Namespace

import pytest

from presence.loadtest.device_tokens import DeviceTokens


def answer_of(command: str) -> tuple[str, str]:
    """Return the token of a user, and why there is none."""
    answers: list[tuple[str, str]] = []
    tokens = DeviceTokens(Namespace(token_key_file="", token_audience="presence", token_command=command))
    tokens.get("ann", lambda token, failure: answers.append((token, failure)))
    tokens._commands.join(10)
    (found,) = answers
    return found


def test_what_the_command_prints_is_the_token() -> None:
    assert answer_of("echo token-of-{uid}") == ("token-of-ann", "")


@pytest.mark.parametrize(
    ("command", "failure"),
    [
        ("false {uid}", "--token-command ended with status 1"),
        ("no-such-program {uid}", "--token-command: [Errno 2] No such file or directory: 'no-such-program'"),
        ("true {uid}", "--token-command printed nothing"),
        (r"printf '\377' {uid}", "--token-command printed what is no text"),
    ],
)
def test_a_command_without_a_token_says_why(command: str, failure: str) -> None:
    assert answer_of(command) == ("", failure)
