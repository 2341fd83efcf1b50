"""What a client reads in a token, and what it takes for one."""

import base64
import json
from typing import Any

import pytest

from presence.client.types import given, left_s
from protocol import TOKEN_MAX_BYTES, EncodeError
from tests.client.driving import token


def claiming(claims: Any) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"


def test_what_is_left_is_told_by_the_servers_clock_without_which_a_token_counts_as_new() -> None:
    assert left_s(token(1_000_060), 1_000_000.5) == 59.5
    assert left_s(token(1_000_060, iat=1_000_000), None) == 60.0


@pytest.mark.parametrize(
    "opaque",
    [
        *(
            "",
            "secret",
            "a.b",
            "a.!.c",
            "\0.\ud800.\xff",
            "a." + "W1tb" * 5000 + ".c",
            "e30.bm8.c2ln",
            "e30." + "W" * 700 + ".c2ln",
        ),
        *map(claiming, ([], {}, 7)),
        *(claiming({"exp": exp}) for exp in (None, "soon", [1], float("inf"), float("nan"), 10**400)),
    ],
)
def test_a_token_that_cannot_be_read_has_no_end(opaque: str) -> None:
    assert left_s(opaque, 0.0) is None
    assert left_s(opaque, None) is None


@pytest.mark.parametrize("wrong", [None, b"bytes", 7, "", "x" * (TOKEN_MAX_BYTES + 1)])
def test_what_breaks_the_protocol_is_no_token(wrong: object) -> None:
    with pytest.raises(EncodeError, match="token"):
        given(wrong)


def test_a_source_that_failed_is_heard() -> None:
    with pytest.raises(OSError, match="no way there"):
        given(OSError("no way there"))
