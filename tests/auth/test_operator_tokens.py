"""The file of operators' tokens: valid lines, and refusals that name the line."""

import os
from pathlib import Path

import pytest

from presence.auth.operator_tokens import MAX_FILE_BYTES, TokenFileError, load, make_line, parse

READ, ACT = "secret-of-read-0123", "secret-of-act-0123456"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# who may\n\nread grafana {READ}\n  act   ann\t{ACT}  \n")
    path.chmod(0o640)
    return path


def test_a_secret_identifies_its_operator(path: Path) -> None:
    tokens = load(path)
    found = [tokens.find(secret) for secret in (READ, ACT)]
    assert [(token.role, token.name) for token in found if token] == [("read", "grafana"), ("act", "ann")]
    assert tokens.find(READ[:-1]) is None
    assert tokens.find("") is None
    assert READ not in repr(found) + repr(vars(tokens)), "no secret is kept"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("read grafana", "must be ROLE NAME SECRET"),
        (f"read grafana {ACT} more", "must be ROLE NAME SECRET"),
        (f"write grafana {ACT}", "ROLE must be one of read, act"),
        (f"read gra/fana {ACT}", "NAME must be"),
        (f"read {'n' * 65} {ACT}", "NAME must be"),
        ("read grafana short-secret-15", "SECRET must be 16 to 256"),
        (f"read grafana {'s' * 257}", "SECRET must be 16 to 256"),
        ("read grafana sécret-of-0123456789", "SECRET must be"),
        (f"act ann {READ}", "another line has this secret"),
    ],
)
def test_an_invalid_line_is_named_and_not_shown(line: str, problem: str) -> None:
    with pytest.raises(TokenFileError) as caught:
        parse(f"# who\nread first {READ}\n{line}\n".encode(), Path("tokens"))
    assert str(caught.value).startswith(f"tokens: line 3: {problem}")
    assert line.rsplit(maxsplit=1)[-1] not in str(caught.value)


def test_a_missing_or_readable_or_too_large_file_is_refused(path: Path) -> None:
    os.mkfifo(path.parent / "fifo")
    for name in ("fifo", "nothing", "."):
        with pytest.raises(TokenFileError, match="cannot be read"):
            load(path.parent / name)
    for mode in (0o644, 0o602):
        path.chmod(mode)
        with pytest.raises(TokenFileError, match="chmod o-rwx"):
            load(path)
    path.chmod(0o600)
    lines = "\n".join(make_line("read", f"n{number}") for number in range(201))
    for text, problem in (
        ("", "no token"),
        ("\n# no tokens yet\n", "no token"),
        ("#" * (MAX_FILE_BYTES + 1), "larger"),
        (lines, "more than 200"),
    ):
        path.write_text(text)
        with pytest.raises(TokenFileError, match=problem):
            load(path)
