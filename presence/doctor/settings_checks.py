"""Checks of the settings and of the files they name."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import trio

from presence.config.loader import exposures
from presence.config.settings import FIELDS, Settings, is_url
from presence.doctor.results import CheckResult, fail, not_tried, ok, warn
from presence.followups.handler_loader import HandlerError, load
from presence.server import credentials
from presence.server.credentials import CredentialsError

RENEWED_BEFORE: Final = timedelta(days=14)  # automatic renewal happens earlier


def settings(problems: Sequence[str]) -> list[CheckResult]:
    """Return the problems of a `ConfigError`, or that there are none."""
    check, need = "settings", "known, valid and without contradictions"
    fix = "correct it at its source; presence config check reports what is left"
    return [fail(check, need, problem, fix) for problem in problems] or [
        ok(check, need, f"{len(FIELDS)} settings")
    ]


def files(settings: Settings, handler_names: Sequence[str]) -> list[CheckResult]:
    """Return the results about files that settings name, and about handlers of follow-ups."""
    return [
        token_keys(settings),
        certificate(settings, datetime.now(UTC)),
        revocation_lists(settings, datetime.now(UTC)),
        operators(settings),
        *strangers(settings),
        *handlers(settings, handler_names),
    ]


def token_keys(settings: Settings) -> CheckResult:
    check, need, source = (
        "token keys",
        "a valid file or URL of keys, if token_keys is set",
        settings.token_keys,
    )
    if source is None:
        return ok(check, need, "token_keys is not set: no tokens are checked")
    try:
        keyring = trio.run(credentials.read_keys, settings, source)
    except CredentialsError as error:
        fix = "fix that key, or generate one: presence token keygen --append-to FILE --public FILE"
        if is_url(source):
            fix = "correct the URL, or let this machine reach it; until then new servers refuse logins (404)"
        return fail(check, need, error.problem, fix)
    return ok(check, need, f"{source}: {len(keyring)} keys, {keyring.ignored} ignored")


def certificate(settings: Settings, now: datetime) -> CheckResult:
    """Check the certificate and its expiry."""
    check, need = "certificate", "a certificate that does not expire soon, if tls_cert is set"
    try:
        found = credentials.certificate(settings)
    except CredentialsError as error:
        fix = "correct the file: PEM, followed by its chain, with its own key"
        if error.setting.startswith("tls_client"):
            fix = "correct the file: PEM, with the authorities of clients, or with their revocation lists"
        return fail(check, need, str(error), fix)
    if found is None:
        return ok(check, need, "tls_cert is not set: plain TCP only")
    until = f"{found.ends_at:%Y-%m-%d %H:%M} UTC"
    renew = f"renew {settings.tls_cert}, then SIGHUP (systemctl reload presence): no connection is closed"
    if found.ends_at <= now:
        return fail(check, need, f"{settings.tls_cert}, expired since {until}", renew)
    have = f"{settings.tls_cert}, valid until {until}"
    if found.ends_at - now < RENEWED_BEFORE:
        return warn(check, need, have, renew)
    return ok(check, need, have)


def revocation_lists(settings: Settings, now: datetime) -> CheckResult:
    """Check the expiry of the revocation lists of client certificates."""
    check, need = "revocation lists", "lists that do not expire soon, if tls_client_crl is set"
    if settings.tls_client_crl is None:
        return ok(check, need, "tls_client_crl is not set: no client certificate is revoked")
    try:
        found = credentials.certificate(settings)
    except CredentialsError:
        return not_tried(check, need, "a file of the certificate is invalid", "see certificate")
    if found is None or found.crl_ends_at is None:
        return ok(check, need, f"{settings.tls_client_crl}, never expires")
    have = f"{settings.tls_client_crl}, valid until {found.crl_ends_at:%Y-%m-%d %H:%M} UTC"
    fix = f"renew {settings.tls_client_crl}, then SIGHUP: after its expiry no client of its authority gets in"
    if found.crl_ends_at <= now:
        return fail(check, need, have, fix)
    if found.crl_ends_at - now < credentials.CRL_RENEWED_BEFORE:
        return warn(check, need, have, fix)
    return ok(check, need, have)


def operators(settings: Settings) -> CheckResult:
    """Check the access of operators."""
    check, need = "operators", "a valid file of tokens, if admin_tokens is set"
    if settings.no_admin:
        return ok(check, need, "no_admin: HTTP for operators is off")
    if settings.admin_tokens is None:
        return ok(
            check, need, f"none: everyone who reaches {settings.admin} on this machine may read and act"
        )
    for error in credentials.operator_token_problems(settings):
        fix = "fix that line, or generate one: presence token admin --role read --name NAME"
        return fail(check, need, error.problem, fix)
    return ok(check, need, str(settings.admin_tokens))


def strangers(settings: Settings) -> list[CheckResult]:
    """Return what is open to strangers."""
    need = "nothing unintentionally open to strangers"
    found = [exposure.rpartition(": ") for exposure in exposures(settings)]
    return [warn("strangers", need, what, fix) for what, _, fix in found] or [
        ok("strangers", need, f"{settings.host}")
    ]


def handlers(settings: Settings, names: Sequence[str]) -> list[CheckResult]:
    """Check that handlers of follow-ups can be imported and called."""
    check, need = "handlers", "functions that can be imported and called with a follow-up"
    results = []
    for name in names:
        try:
            load(name)
        except HandlerError as error:
            results.append(fail(check, need, str(error), "install it, or correct MODULE:FUNCTION"))
        else:
            results.append(ok(check, need, name))
    if results:
        return results
    if settings.followups:
        why = "none is named; servers plan follow-ups, and other programs handle them"
        return [not_tried(check, need, why, "presence doctor --handler MODULE:FUNCTION")]
    return [ok(check, need, "there are no rules for follow-ups")]
