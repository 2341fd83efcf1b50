"""Keys and certificate of a server: opened at the start, read again when asked, kept if the new are bad."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from presence import credential_files
from presence.auth.verdicts import Granted
from presence.clock import Clock
from presence.config import load
from presence.credential_files import CredentialsError
from presence.credentials import Credentials
from presence.settings import Settings
from protocol import Code
from tests.credentials import SECRET, token, write_keys
from tests.transports import certificates

CLOCK = Clock()
OTHER = bytes(reversed(SECRET))


def problems(settings: Settings) -> list[str]:
    return [str(error) for error in credential_files.problems(settings)]


def opened(settings: Settings) -> Credentials:
    return Credentials(settings, CLOCK, 10)


def let_in(found: Credentials, shown: str) -> bool:
    assert found.gate
    verdict = found.gate.login(shown, None, "192.0.2.1", CLOCK.now())
    assert isinstance(verdict, Granted) or verdict.code == Code.AUTH_FAILED
    return isinstance(verdict, Granted)


def test_a_server_without_files_has_neither() -> None:
    found = opened(Settings())
    assert (found.gate, found.certificate, found.report()) == (None, None, {})
    assert problems(Settings()) == []


@pytest.mark.parametrize("setting", ["token_keys", "tls_cert", "tls_key"])
def test_a_file_that_is_not_there_is_named_with_its_setting(setting: str, tmp_path: Path) -> None:
    cert, key = certificates.write(tmp_path)
    away = tmp_path / "away"
    files: dict[str, Any] = {"tls_cert": cert, "tls_key": key, setting: away}
    (said,) = problems(Settings(**files))
    assert said.startswith(f"{setting}: {away}: ")
    assert said.endswith("No such file or directory")
    with pytest.raises(CredentialsError, match=f"^{setting}: "):
        opened(Settings(**files))


async def test_other_keys_are_in_use_once_the_file_is_read_again(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    found = opened(Settings(token_keys=path))
    await found.reload()
    assert let_in(found, token("ann"))
    write_keys(path, {"b": OTHER})
    await found.reload()
    assert not let_in(found, token("ann"))
    assert let_in(found, token("ann", "b", OTHER))
    assert found.report()["tokens"]["renewed"] == 1


async def test_bad_keys_leave_the_others_in_use(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    found = opened(Settings(token_keys=path))
    await found.reload()
    path.write_text("{")
    with capture_logs() as lines:
        await found.reload()
    assert [line["log_level"] for line in lines] == ["error"]
    assert let_in(found, token("ann"))


async def test_another_certificate_is_shown_once_the_file_is_read_again(tmp_path: Path) -> None:
    cert, key = certificates.write(tmp_path)
    found = opened(Settings(tls_cert=cert, tls_key=key))
    assert found.certificate
    before = found.certificate.context
    await found.reload()
    assert found.certificate.context is not before
    cert.write_text("")
    kept = found.certificate.context
    with capture_logs() as lines:
        await found.reload()
    assert found.certificate.context is kept
    assert [line["log_level"] for line in lines] == ["error"]
    assert found.report() == {"certificate": {"renewed": 1, "failed": 1}}


def test_keys_open_a_server_to_others(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    settings = load({"host": "0.0.0.0", "token_keys": str(path)}, {}).settings
    assert problems(settings) == []
