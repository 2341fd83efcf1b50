"""Keys and certificate of a server: loaded at start, reloaded on request, kept if new ones are invalid."""

import os
import ssl
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from presence.auth import key_file
from presence.auth.token_signer import key_set
from presence.common import runtime
from presence.common.clock import Clock
from presence.common.faults import Faults
from presence.config.settings import Settings
from presence.core.authenticator import Granted
from presence.protocol import Code
from presence.server import credentials
from presence.server.credentials import EXPIRY_CHECK_INTERVAL_S, Credentials, CredentialsError
from presence.transports import tls
from tests.auth.gates import entry, signer
from tests.support.credentials import SECRET, token, write_keys
from tests.support.waiting import until
from tests.transports import certificates
from tests.transports.issuer import Issuer

CLOCK = Clock()
PATIENCE_S = 30.0
OTHER = bytes(reversed(SECRET))


def problems(settings: Settings) -> list[str]:
    return [str(error) for error in credentials.problems(settings)]


def opened(settings: Settings) -> Credentials:
    return Credentials(settings, CLOCK)


def let_in(found: Credentials, shown: str) -> bool:
    assert found.authenticator
    result = found.authenticator.login(shown, None, "192.0.2.1", CLOCK.now())
    assert isinstance(result, Granted) or result.code == Code.AUTH_FAILED
    return isinstance(result, Granted)


def test_without_files_there_is_no_authenticator_and_no_certificate() -> None:
    found = opened(Settings())
    assert (found.authenticator, found.certificate, found.report()) == (None, None, {})
    assert problems(Settings()) == []


def test_the_keys_of_session_tickets_are_made_before_workers_are_forked(tmp_path: Path) -> None:
    cert, key = certificates.write(tmp_path)
    settings = Settings(tls_cert=cert, tls_key=key)
    tls.ticket_context.cache_clear()
    credentials.load_modules(settings)
    made = tls.ticket_context.cache_info().misses
    found = opened(settings).certificate
    assert found
    assert found.ticket_context is tls.ticket_context()
    assert tls.ticket_context.cache_info().misses == made == 1


def test_tokens_are_checked_by_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(key_set([entry("HS256")]))
    path.chmod(0o600)
    settings = Settings(token_keys=str(path), token_audience="app", token_leeway=10.0)
    authenticator = credentials.load_authenticator(settings, CLOCK)
    assert authenticator is not None
    for age_s, is_good in ((65, True), (75, False)):
        shown = signer("HS256").token("ann", audience="app", now=time.time() - age_s, ttl_s=60)
        assert isinstance(authenticator.login(shown, None, "192.0.2.1", CLOCK.now()), Granted) is is_good
    os.truncate(path, 10)
    with pytest.raises(CredentialsError, match="token_keys"):
        credentials.load_authenticator(settings, CLOCK)


@pytest.mark.parametrize("setting", ["token_keys", "tls_cert", "tls_key", "tls_client_ca", "tls_client_crl"])
def test_missing_file_is_reported_with_its_setting(setting: str, tmp_path: Path) -> None:
    cert, key = certificates.write(tmp_path)
    away = tmp_path / "away"
    files: dict[str, Any] = {"tls_cert": cert, "tls_key": key}
    if setting == "tls_client_crl":
        files["tls_client_ca"] = Issuer(tmp_path).ca
    files[setting] = str(away) if setting == "token_keys" else away
    (problem,) = problems(Settings(**files))
    assert problem.startswith(f"{setting}: {away}: ")
    assert problem.endswith("No such file or directory")
    with pytest.raises(CredentialsError, match=f"^{setting}: "):
        opened(Settings(**files))


async def test_valid_new_certificate_is_used_after_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        disk = threading.Event()
        monkeypatch.setattr(tls.Certificate, "read", lambda _: disk.wait(PATIENCE_S))
        monkeypatch.setattr(runtime, "CALL_TIMEOUT_S", 0.05)
        await found.reload()
        disk.set()
    assert found.certificate.context is kept
    assert [line["log_level"] for line in lines] == ["error"] * 2
    ends_at = found.certificate.ends_at.timestamp()
    assert found.report() == {"certificate": {"renewed": 1, "failed": 2, "ends_at": ends_at}}


@pytest.mark.parametrize(("token_keys", "is_required"), [(False, True), (True, False)])
def test_a_client_certificate_is_required_without_token_keys(
    tmp_path: Path, token_keys: bool, is_required: bool
) -> None:
    cert, key = certificates.write(tmp_path)
    keys = str(write_keys(tmp_path / "keys.json", {"a": SECRET})) if token_keys else None
    settings = Settings(tls_cert=cert, tls_key=key, tls_client_ca=Issuer(tmp_path).ca, token_keys=keys)
    found = opened(settings)
    assert found.client_identities
    assert found.certificate
    wanted = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    assert found.certificate.context.verify_mode is wanted


@pytest.mark.parametrize(
    ("hours", "event"),
    [
        (-1, "revocation list expired, clients refused"),
        (11, "revocation list expires soon"),
        (13, None),
    ],
)
async def test_the_expiry_of_a_revocation_list_is_logged(
    tmp_path: Path, autojump_clock: object, hours: int, event: str | None
) -> None:
    cert, key = certificates.write(tmp_path)
    issuer = Issuer(tmp_path)
    crl = issuer.write_crl(ends=timedelta(hours=hours))
    found = opened(Settings(tls_cert=cert, tls_key=key, tls_client_ca=issuer.ca, tls_client_crl=crl))
    with capture_logs() as lines, trio.move_on_after(1.5 * EXPIRY_CHECK_INTERVAL_S):
        await found.run(Faults(lambda _: None))
    assert [line["event"] for line in lines] == ([event] * 2 if event else [])


@pytest.mark.parametrize("hanging", ["keys", "certificate"])
async def test_hanging_file_delays_neither_the_other_file_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: str
) -> None:
    cert, key = certificates.write(tmp_path)
    path = write_keys(tmp_path / "keys.json", {"a": SECRET})
    found = opened(Settings(tls_cert=cert, tls_key=key, token_keys=str(path)))
    assert found.certificate
    await found.reload()
    shown = found.certificate.context
    disk = threading.Event()
    owner, name = (key_file, "read") if hanging == "keys" else (tls.Certificate, "read")
    monkeypatch.setattr(owner, name, lambda *_: disk.wait(PATIENCE_S))
    write_keys(path, {"b": OTHER})

    def is_renewed() -> bool:
        if hanging == "keys":
            return found.certificate is not None and found.certificate.context is not shown
        return let_in(found, token("ann", "b", OTHER))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.reload)
        await until(is_renewed)
        nursery.cancel_scope.cancel()
    assert not disk.is_set()
    disk.set()
