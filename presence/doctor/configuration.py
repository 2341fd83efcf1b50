"""Checks of the settings and of the files that they name."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from presence.common.clock import Clock
from presence.config.loading import exposures
from presence.config.settings import FIELDS, Settings
from presence.doctor.findings import Finding, fail, not_tried, ok, warn
from presence.server import credentials
from presence.server.credentials import CredentialsError
from presence.timers.handlers import HandlerError, load

RENEWED_BEFORE: Final = timedelta(days=14)  # what renews certificates by itself does it earlier


def settings(problems: Sequence[str]) -> list[Finding]:
    """Say what is wrong with flags, variables and file: all at once.

    Args:
        problems: as `presence.config.loading.ConfigError` has them: what, and where it came from.
    """
    check, need = "settings", "each known and sound, none against another"
    mend = "put it right where it came from; presence config check says whether that was all"
    return [fail(check, need, problem, mend) for problem in problems] or [
        ok(check, need, f"{len(FIELDS)} settings")
    ]


def files(settings: Settings, handler_names: Sequence[str]) -> list[Finding]:
    """Return the findings about what the settings name, and about functions for follow-ups."""
    return [
        token_keys(settings),
        certificate(settings, datetime.now(UTC)),
        operators(settings),
        *strangers(settings),
        *handlers(settings, handler_names),
    ]


def token_keys(settings: Settings) -> Finding:
    """Whether clients' tokens can be checked."""
    check, need = "token keys", "a sound file of keys, where token_keys names one"
    try:
        gate = credentials.authenticator(settings, Clock())
    except CredentialsError as error:
        mend = "mend that key, or make one: presence token key --into FILE --public FILE"
        return fail(check, need, error.problem, mend)
    return ok(
        check,
        need,
        "token_keys is not set: a client is whoever it says" if gate is None else str(settings.token_keys),
    )


def certificate(settings: Settings, now: datetime) -> Finding:
    """Whether clients take the certificate, and for how long."""
    check, need = "certificate", "a certificate that is good for a while, where tls_cert names one"
    try:
        found = credentials.certificate(settings)
    except CredentialsError as error:
        return fail(check, need, error.problem, "put the file right: PEM, the chain behind it, its own key")
    if found is None:
        return ok(check, need, "tls_cert is not set: plain TCP only")
    until = f"{found.ends_at:%Y-%m-%d %H:%M} UTC"
    renew = f"renew {settings.tls_cert}, then SIGHUP (systemctl reload presence): nobody is dropped"
    if found.ends_at <= now:
        return fail(check, need, f"{settings.tls_cert}, expired since {until}", renew)
    have = f"{settings.tls_cert}, good until {until}"
    if found.ends_at - now < RENEWED_BEFORE:
        return warn(check, need, have, renew)
    return ok(check, need, have)


def operators(settings: Settings) -> Finding:
    """Whether operators can come in, and nobody else."""
    check, need = "operators", "a sound file of tokens, where admin_tokens names one"
    if settings.no_admin:
        return ok(check, need, "no_admin: they are not served")
    if settings.admin_tokens is None:
        return ok(check, need, f"none: whoever reaches {settings.admin} on this machine may read and act")
    for error in credentials.operator_token_problems(settings):
        mend = "mend that line, or make one: presence token admin --role read --name NAME"
        return fail(check, need, error.problem, mend)
    return ok(check, need, str(settings.admin_tokens))


def strangers(settings: Settings) -> list[Finding]:
    """Say what is open to strangers."""
    need = "nothing open to strangers by mistake"
    found = [exposure.rpartition(": ") for exposure in exposures(settings)]
    return [warn("strangers", need, what, mend) for what, _, mend in found] or [
        ok("strangers", need, f"{settings.host}")
    ]


def handlers(settings: Settings, names: Sequence[str]) -> list[Finding]:
    """Whether what is called with follow-ups can be imported and called."""
    check, need = "handlers", "functions that can be imported and called with a follow-up"
    findings = []
    for name in names:
        try:
            problem = f"handler {name} must be a plain function" if load(name).is_async else ""
        except HandlerError as error:
            problem = str(error)
        mend = "install it, or correct MODULE:FUNCTION"
        findings.append(fail(check, need, problem, mend) if problem else ok(check, need, name))
    if findings:
        return findings
    if settings.followups:
        why = "none is named; servers plan follow-ups, and somebody else acts on them"
        return [not_tried(check, need, why, "presence doctor --handler MODULE:FUNCTION")]
    return [ok(check, need, "there are no rules of follow-ups")]
