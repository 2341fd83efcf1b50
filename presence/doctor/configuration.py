"""Checks of the settings and of the files that they name. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from presence.doctor.credentials_facts import Files
from presence.doctor.findings import Finding, fail, not_tried, ok, warn
from presence.exposure import exposures
from presence.settings import SPECS, Settings

RENEWED_BEFORE: Final = timedelta(days=14)  # what renews certificates by itself does it earlier
_SOUND: Final = "each known and sound, none against another"


def settings(problems: Sequence[str]) -> list[Finding]:
    """Say what is wrong with flags, variables and file: all at once.

    Args:
        problems: as `presence.config.ConfigError` has them: what, and where it came from.
    """
    if not problems:
        return [ok("settings", _SOUND, f"{len(SPECS)} settings")]
    return [
        fail(
            "settings",
            _SOUND,
            problem,
            "put it right where it came from; presence config check says whether that was all",
        )
        for problem in problems
    ]


def files(settings: Settings, found: Files, now: datetime) -> list[Finding]:
    """Return the findings about what the settings name."""
    return [
        token_keys(settings, found),
        certificate(settings, found, now),
        operators(settings, found),
        *strangers(settings),
        *handlers(settings, found),
    ]


def token_keys(settings: Settings, found: Files) -> Finding:
    """Whether clients' tokens can be checked."""
    check, need = "token keys", "a sound file of keys, where token_keys names one"
    if found.keys is None:
        return ok(check, need, "token_keys is not set: a client is whoever it says")
    if found.keys:
        mend = "mend that key, or make one: presence token key --into FILE --public FILE"
        return fail(check, need, found.keys, mend)
    return ok(check, need, str(settings.token_keys))


def certificate(settings: Settings, found: Files, now: datetime) -> Finding:
    """Whether clients take the certificate, and for how long."""
    check, need = "certificate", "a certificate that is good for a while, where tls_cert names one"
    if found.certificate is None:
        return ok(check, need, "tls_cert is not set: plain TCP only")
    if found.certificate:
        return fail(
            check, need, found.certificate, "put the file right: PEM, the chain behind it, its own key"
        )
    if found.ends_at is None:
        return not_tried(check, need, "it does not say until when it is good")
    have = f"{settings.tls_cert}, good until {found.ends_at:%Y-%m-%d %H:%M} UTC"
    renew = f"renew {settings.tls_cert}, then SIGHUP (systemctl reload presence): nobody is dropped"
    if found.ends_at <= now:
        return fail(check, need, have.replace("good until", "expired since"), renew)
    if found.ends_at - now < RENEWED_BEFORE:
        return warn(check, need, have, renew)
    return ok(check, need, have)


def operators(settings: Settings, found: Files) -> Finding:
    """Whether operators can come in, and nobody else."""
    check, need = "operators", "a sound file of tokens, where admin_tokens names one"
    if settings.no_admin:
        return ok(check, need, "no_admin: they are not served")
    if found.operators is None:
        return ok(check, need, f"none: whoever reaches {settings.admin} on this machine may read and act")
    if found.operators:
        mend = "mend that line, or make one: presence token admin --role read --name NAME"
        return fail(check, need, found.operators, mend)
    return ok(check, need, str(settings.admin_tokens))


def strangers(settings: Settings) -> list[Finding]:
    """Say what is open to strangers."""
    need = "nothing open to strangers by mistake"
    found = [exposure.rpartition(": ") for exposure in exposures(settings)]
    return [warn("strangers", need, what, mend) for what, _, mend in found] or [
        ok("strangers", need, f"{settings.host}")
    ]


def handlers(settings: Settings, found: Files) -> list[Finding]:
    """Whether what is called with follow-ups can be called."""
    check, need = "handlers", "functions that can be imported and called with a follow-up"
    findings = [
        fail(check, need, problem, "install it, or correct MODULE:FUNCTION")
        if problem
        else ok(check, need, name)
        for name, problem in found.handlers.items()
    ]
    if findings:
        return findings
    if settings.followups:
        why = "none is named; servers plan follow-ups, and somebody else acts on them"
        return [not_tried(check, need, why, "presence doctor --handler MODULE:FUNCTION")]
    return [ok(check, need, "there are no rules of follow-ups")]
