"""Settings and the files that they name."""

import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from presence.config.followup_rules import Rule
from presence.config.settings import Settings
from presence.doctor import settings_checks
from presence.doctor.results import CheckResult, CheckStatus
from tests.transports import certificates
from tests.transports.issuer import Issuer


def found(check: str, settings: Settings, *handlers: str) -> CheckResult:
    results = settings_checks.files(settings, handlers)
    return next(each for each in results if each.check == check)


def test_valid_settings_without_files_pass() -> None:
    results = [*settings_checks.settings([]), *settings_checks.files(Settings(), [])]
    assert {each.status for each in results} == {CheckStatus.OK}


@pytest.mark.parametrize(
    ("check", "setting", "fix"),
    [
        ("token keys", "token_keys", "presence token keygen"),
        ("operators", "admin_tokens", "presence token admin"),
        ("certificate", "tls_cert", "correct the file"),
    ],
)
def test_an_unusable_file_fails(check: str, setting: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no such thing")
    (tmp_path / "file").chmod(0o600)
    file = tmp_path / "file"
    result = found(check, Settings(**{setting: str(file) if setting == "token_keys" else file}))  # type: ignore[arg-type] # by name
    assert result.status is CheckStatus.FAIL
    assert fix in result.fix


def test_an_unreachable_provider_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    result = found("token keys", Settings(token_keys=f"http://127.0.0.1:{port}/keys"))
    assert result.status is CheckStatus.FAIL
    assert f"http://127.0.0.1:{port}/keys: cannot be read" in result.have
    assert "refuse logins" in result.fix


def test_a_certificate_is_a_warning_two_weeks_before_it_expires(tmp_path: Path) -> None:
    cert, key = certificates.write(tmp_path)
    settings = Settings(tls_cert=cert, tls_key=key)
    ends_at = datetime.strptime(
        settings_checks.certificate(settings, datetime.now(UTC)).have.partition("valid until ")[2],
        "%Y-%m-%d %H:%M UTC",
    ).replace(tzinfo=UTC)
    for days, status in ((15, CheckStatus.OK), (13, CheckStatus.WARN), (-1, CheckStatus.FAIL)):
        result = settings_checks.certificate(settings, ends_at - timedelta(days=days))
        assert result.status is status
        assert result.fix.startswith("" if status is CheckStatus.OK else f"renew {cert}, then SIGHUP")


def test_a_revocation_list_is_a_warning_half_a_day_before_it_expires(tmp_path: Path) -> None:
    cert, key = certificates.write(tmp_path)
    issuer = Issuer(tmp_path)
    crl = issuer.write_crl(ends=timedelta(days=3))
    settings = Settings(tls_cert=cert, tls_key=key, tls_client_ca=issuer.ca, tls_client_crl=crl)
    ends_at = datetime.now(UTC) + timedelta(days=3)
    for hours, status in ((13, CheckStatus.OK), (11, CheckStatus.WARN), (-1, CheckStatus.FAIL)):
        result = settings_checks.revocation_lists(settings, ends_at - timedelta(hours=hours))
        assert result.status is status
        assert result.fix.startswith("" if status is CheckStatus.OK else f"renew {crl}, then SIGHUP")
    crl.write_text("no such thing")
    assert found("revocation lists", settings).status is CheckStatus.NOT_TRIED
    result = found("certificate", settings)
    assert result.status is CheckStatus.FAIL
    assert f"tls_client_crl: {crl}: " in result.have


def test_rules_without_a_handler_and_exposures_are_reported_with_their_fix() -> None:
    result = found("handlers", Settings(followups=(Rule("mail", 60),)))
    assert result.status is CheckStatus.NOT_TRIED
    assert "--handler" in result.fix
    result = found("strangers", Settings(host="0.0.0.0", insecure=True))
    assert result.status is CheckStatus.WARN
    assert (result.have, result.fix) == (
        "any client that reaches this server can log in as any user",
        "set token_keys",
    )
