"""What ``presence webhooks run`` refuses."""

from pathlib import Path

import pytest

from presence.cli.main import main

SECRET = "sixteen characters"


def run(*words: str) -> int:
    return main(["webhooks", "run", "--redis", "redis://127.0.0.1:1", *words])


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (SECRET, 0o644, "accessible to all users"),
        ("", 0o600, "must have one line with a secret, or two"),
        (f"{SECRET}\n" * 3, 0o600, "must have one line with a secret, or two"),
        ("short", 0o600, "at least 16 characters"),
    ],
)
def test_an_unfit_secret_is_refused(
    content: str, mode: int, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(mode)
    assert run("--url", "http://127.0.0.1:1/", "--secret-file", str(path)) == 2
    errors = capsys.readouterr().err
    assert complaint in errors
    assert SECRET not in errors


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "ftp://127.0.0.1/"),
        ("--url", "http:///events"),
        ("--url", "http://127.0.0.1:99999/"),
        ("--url", "http://receiver..example/"),
        ("--url", f"http://{'a' * 64}.example/"),
        ("--url", "http://\u2488com/"),
        ("--url", "http://127.0.0.1:1/", "--types", "online,ofline"),
        ("--url", "http://127.0.0.1:1/", "--types", "online,occupied"),
        ("--url", "http://127.0.0.1:1/", "--types", ""),
        ("--url", "http://127.0.0.1:1/", "--batch", "0"),
        ("--url", "http://127.0.0.1:1/", "--metrics", "9090"),
    ],
)
def test_unfit_arguments_are_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text(SECRET)
    assert run("--secret-file", str(path), *words) == 2


def test_without_redis_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text(SECRET)
    assert run("--url", "http://127.0.0.1:1/", "--secret-file", str(path)) == 1
    assert "cannot reach Redis at redis://127.0.0.1:1" in capsys.readouterr().err
