"""The file of operators' tokens: what is taken, and what refuses it by its line."""

import os
from pathlib import Path

import pytest

from presence.admin.token_file import FILE_MAX_BYTES, TokenFileError, load, make_line, parse

READ, ACT = "secret-of-read-0123", "secret-of-act-0123456"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"# who may\n\nread grafana {READ}\n  act   ann\t{ACT}  \n")
    path.chmod(0o640)
    return path


def test_who_a_secret_belongs_to(path: Path) -> None:
    tokens = load(path)
    found = [tokens.find(secret) for secret in (READ, ACT)]
    assert [(token.role, token.name) for token in found if token] == [("read", "grafana"), ("act", "ann")]
    assert tokens.find(READ[:-1]) is None
    assert tokens.find("") is None


def test_no_secret_is_kept(path: Path) -> None:
    token = load(path).find(READ)
    assert READ not in repr(token)
    assert READ not in repr(vars(load(path)))


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
def test_a_bad_line_is_named_and_not_shown(line: str, problem: str) -> None:
    with pytest.raises(TokenFileError) as caught:
        parse(f"# who\nread first {READ}\n{line}\n".encode(), Path("tokens"))
    assert str(caught.value).startswith(f"tokens: line 3: {problem}")
    assert line.rsplit(maxsplit=1)[-1] not in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n# nobody yet\n"])
def test_a_file_without_a_token_is_refused(text: str) -> None:
    with pytest.raises(TokenFileError, match="holds no token"):
        parse(text.encode(), Path("tokens"))


@pytest.mark.parametrize("mode", [0o644, 0o602])
def test_a_file_that_is_open_to_everybody_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(TokenFileError, match="chmod o-rwx"):
        load(path)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "nothing", "."):
        with pytest.raises(TokenFileError, match="cannot be read"):
            load(tmp_path / name)


def test_a_file_that_is_too_large_is_refused(path: Path) -> None:
    path.write_text("#" * (FILE_MAX_BYTES + 1))
    with pytest.raises(TokenFileError, match="is larger than"):
        load(path)


def test_too_many_tokens_are_refused() -> None:
    lines = "\n".join(make_line("read", f"n{number}") for number in range(201))
    with pytest.raises(TokenFileError, match="more than 200"):
        parse(lines.encode(), Path("tokens"))
