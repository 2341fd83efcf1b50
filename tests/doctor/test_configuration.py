"""Settings and the files that they name."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from presence.doctor import configuration
from presence.doctor.credentials_facts import Files
from presence.doctor.findings import Finding, Status
from presence.rules import Rule
from presence.settings import Settings

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NOTHING = Files(keys=None, certificate=None, ends_at=None, operators=None, handlers={})
NAMED = Settings(
    token_keys=Path("keys.json"), tls_cert=Path("cert.pem"), admin_tokens=Path("tokens"), tls_only=True
)


def found(check: str, settings: Settings = NAMED, **changed: Any) -> Finding:
    findings = configuration.files(settings, replace(NOTHING, **changed), NOW)
    return next(each for each in findings if each.check == check)


def test_all_problems_are_told_at_once() -> None:
    findings = configuration.settings(["tick: must be …", "'tik': unknown key"])
    assert [(each.status, each.have) for each in findings] == [
        (Status.FAIL, "tick: must be …"),
        (Status.FAIL, "'tik': unknown key"),
    ]


def test_sound_settings_are_found_so() -> None:
    assert [each.status for each in configuration.settings([])] == [Status.OK]


def test_without_files_nothing_is_wanting() -> None:
    assert {each.status for each in configuration.files(Settings(), NOTHING, NOW)} == {Status.OK}


@pytest.mark.parametrize(
    ("check", "changed", "status", "mend"),
    [
        ("token keys", {"keys": ""}, Status.OK, ""),
        ("token keys", {"keys": "keys.json: key 'a': kty must be oct"}, Status.FAIL, "presence token key"),
        ("operators", {"operators": ""}, Status.OK, ""),
        ("operators", {"operators": "tokens: line 3: …"}, Status.FAIL, "presence token admin"),
        ("certificate", {"certificate": "cert.pem: No such file"}, Status.FAIL, "put the file right"),
        ("certificate", {"certificate": "", "ends_at": NOW + timedelta(days=15)}, Status.OK, ""),
        (
            "certificate",
            {"certificate": "", "ends_at": NOW + timedelta(days=13)},
            Status.WARN,
            "renew cert.pem",
        ),
        ("certificate", {"certificate": "", "ends_at": NOW}, Status.FAIL, "renew cert.pem, then SIGHUP"),
        ("handlers", {"handlers": {"a:b": "handler a:b: there is no module a"}}, Status.FAIL, "install it"),
        ("handlers", {"handlers": {"a:b": ""}}, Status.OK, ""),
    ],
)
def test_what_a_file_holds_is_judged(check: str, changed: dict[str, Any], status: Status, mend: str) -> None:
    finding = found(check, **changed)
    assert finding.status is status
    assert mend in finding.mend


def test_the_day_of_expiry_is_told() -> None:
    assert (
        "good until 2030-02-01 00:00 UTC"
        in found("certificate", certificate="", ends_at=NOW + timedelta(days=31)).have
    )
    assert (
        "expired since 2029-12-31"
        in found("certificate", certificate="", ends_at=NOW - timedelta(days=1)).have
    )


def test_rules_without_a_handler_are_not_tried() -> None:
    finding = found("handlers", Settings(followups=(Rule("mail", 60),)))
    assert finding.status is Status.NOT_TRIED
    assert "--handler" in finding.mend


def test_what_is_open_to_strangers_is_told_with_what_closes_it() -> None:
    finding = found("strangers", Settings(host="0.0.0.0", insecure=True))
    assert finding.status is Status.WARN
    assert (finding.have, finding.mend) == ("whoever reaches this server may be any user", "set token_keys")
