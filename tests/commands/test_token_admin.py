"""`presence token admin`: tokens of operators, made and added."""

import stat
from pathlib import Path

import pytest

from presence.admin.token_file import load
from presence.cli import main

pytestmark = pytest.mark.usefixtures("clean_environment")


def made(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["token", "admin", *words]) == 0
    return capsys.readouterr().out


def test_what_is_printed_is_a_line_that_servers_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    path.write_text(made(capsys, "--role", "read", "--name", "grafana"))
    path.chmod(0o600)
    role, name, secret = path.read_text().split()
    assert (role, name) == ("read", "grafana")
    token = load(path).find(secret)
    assert token is not None
    assert (token.role, token.name) == ("read", "grafana")


def test_two_secrets_are_never_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert made(capsys, "--role", "act", "--name", "ann") != made(capsys, "--role", "act", "--name", "ann")


def test_a_file_is_made_for_its_owner_alone_and_added_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    assert made(capsys, "--role", "read", "--name", "grafana", "--into", str(path)) == "read grafana\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f"# kept\n{path.read_text().rstrip()}")
    made(capsys, "--role", "act", "--name", "ann", "--into", str(path))
    assert len(load(path)) == 2
    assert path.read_text().startswith("# kept\nread grafana ")
    assert [each.name for each in tmp_path.iterdir()] == ["tokens"]


def test_nothing_is_added_to_a_file_that_no_server_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    path.write_text("read grafana short\n")
    path.chmod(0o600)
    assert main(["token", "admin", "--role", "act", "--name", "ann", "--into", str(path)]) == 1
    assert "line 1: SECRET must be" in capsys.readouterr().err
    assert path.read_text() == "read grafana short\n"


@pytest.mark.parametrize("name", ["", "two words", "-dash", "x" * 65, "line\nbreak", "ä"])
def test_a_name_that_the_log_could_mistake_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "admin", "--role", "read", f"--name={name}"]) == 2
    assert "presence: token admin: " in capsys.readouterr().err
