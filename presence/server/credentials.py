"""The token keys and the TLS certificate of a server, and their renewal while it runs.

Both change at run time: a key file is checked every second, a URL is read each `token_keys_refresh`. The
certificate, and with it the authorities and revocation lists for certificates of clients, is read again on
SIGHUP. If a new one is invalid, the previous content stays in use and an error is logged. The modules for
them are imported only if a setting asks for them: they take a quarter of a second and 10 MB.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

from presence.common.clock import Clock
from presence.common.faults import Faults
from presence.common.runtime import AbandonableThread, ThreadTimeout
from presence.config.settings import Settings, is_url

if TYPE_CHECKING:
    from presence.auth.client_certificates import CertificateIdentities
    from presence.auth.key_rotation import KeySource
    from presence.auth.signing_keys import Keyring
    from presence.auth.token_authenticator import TokenAuthenticator
    from presence.transports.tls import Certificate

EXPIRY_CHECK_INTERVAL_S = 3600.0
CRL_RENEWED_BEFORE = timedelta(hours=12)  # issuers publish the next list earlier

log = structlog.get_logger("presence.server.credentials")


class CredentialsError(Exception):
    """A file is invalid or unreadable; the text names setting and file, and contains no secret.

    Attributes:
        setting: the setting that names the file.
        problem: what is wrong with it.
    """

    def __init__(self, setting: str, problem: Exception) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = str(problem)


def load_modules(settings: Settings) -> None:
    """Import what a worker with these settings needs, before a supervisor forks its first worker.

    Later the files of these modules may be from another version. All workers have the keys of session tickets
    that are made here.
    """
    if settings.token_keys is not None:
        import presence.auth.key_rotation  # noqa: PLC0415 - see above
        import presence.auth.token_authenticator  # noqa: PLC0415 - see above

        if is_url(settings.token_keys):
            import presence.auth.key_url  # noqa: PLC0415 - see above
    if settings.tls_cert is not None:
        from presence.transports.tls import ticket_context  # noqa: PLC0415 - see above

        ticket_context()
    if settings.tls_client_ca is not None:
        import presence.auth.client_certificates  # noqa: F401, PLC0415 - see above


def load_authenticator(
    settings: Settings, clock: Clock, wall: Callable[[], float] = time.time
) -> "TokenAuthenticator | None":
    """Return the authenticator; None if `token_keys` is not set. `wall`: Unix seconds.

    With a URL it has no keys until they are read.

    Raises:
        CredentialsError: the keys cannot be used.
    """
    if settings.token_keys is None:
        return None
    from presence.auth.signing_keys import KeySetError  # noqa: PLC0415 - see above
    from presence.auth.token_authenticator import (  # noqa: PLC0415 - see above
        TOKEN_CHECK_SHARE,
        TokenAuthenticator,
        budget_of,
    )
    from presence.auth.tokens import TokenRules  # noqa: PLC0415 - see above

    try:
        keys = _key_source(settings, settings.token_keys).initial()
    except KeySetError as error:
        raise CredentialsError("token_keys", error) from None
    rules = TokenRules(
        settings.token_audiences,
        settings.token_leeway,
        settings.token_issuer,
        reads_sight=settings.visibility == "claims",
        reads_rooms=settings.rooms != "off",
    )
    return TokenAuthenticator(keys, rules, budget_of(TOKEN_CHECK_SHARE, clock.now()), wall=wall)


def client_identities(
    settings: Settings, wall: Callable[[], float] = time.time
) -> "CertificateIdentities | None":
    """Return what finds the users of client certificates; None if `tls_client_ca` is not set."""
    if settings.tls_client_ca is None:
        return None
    from presence.auth.client_certificates import CertificateIdentities  # noqa: PLC0415 - see above

    return CertificateIdentities(settings.tls_client_uid, wall)


async def read_keys(settings: Settings, token_keys: str) -> "Keyring":
    """Return the keys that a value of `token_keys` names, as a running server would read them now.

    Raises:
        CredentialsError: there are none.
    """
    from presence.auth.signing_keys import KeySetError  # noqa: PLC0415 - see above

    source = _key_source(settings, token_keys)
    try:
        return source.parse(await source.read())
    except KeySetError as error:
        raise CredentialsError("token_keys", error) from None


def _key_source(settings: Settings, token_keys: str) -> "KeySource":
    if is_url(token_keys):
        from presence.auth.key_url import KeyUrl  # noqa: PLC0415 - see above

        return KeyUrl(token_keys, settings.token_keys_refresh)
    from presence.auth.key_rotation import KeyFile  # noqa: PLC0415 - see above

    return KeyFile(Path(token_keys))


def certificate(settings: Settings) -> "Certificate | None":
    """Return the certificate; None if `tls_cert` is not set.

    Raises:
        CredentialsError: the certificate, its key, or a file for certificates of clients cannot be used.
    """
    if settings.tls_cert is None:
        return None
    from presence.transports.tls import (  # noqa: PLC0415 - see above
        Certificate,
        CertificateError,
        ClientVerification,
    )

    clients = None
    if settings.tls_client_ca is not None:
        clients = ClientVerification(
            settings.tls_client_ca, settings.tls_client_crl, required=settings.token_keys is None
        )
    try:
        return Certificate(settings.tls_cert, settings.tls_key, clients)
    except CertificateError as error:
        for setting in ("tls_key", "tls_client_ca", "tls_client_crl"):
            if str(error).startswith(f"{getattr(settings, setting)}:"):
                raise CredentialsError(setting, error) from None
        raise CredentialsError("tls_cert", error) from None


def problems(settings: Settings) -> Iterator[CredentialsError]:
    """Give what is wrong with the files as they are now."""
    for opened in (lambda: load_authenticator(settings, Clock()), lambda: certificate(settings)):
        try:
            opened()
        except CredentialsError as error:
            yield error


def operator_token_problems(settings: Settings) -> Iterator[CredentialsError]:
    """Yield what is wrong with the operator token file at present; workers do not need it."""
    if settings.admin_tokens is None or settings.no_admin:
        return
    from presence.auth import operator_tokens  # noqa: PLC0415 - see above

    try:
        operator_tokens.load(settings.admin_tokens)
    except operator_tokens.TokenFileError as error:
        yield CredentialsError("admin_tokens", error)


class Credentials:
    """Token keys and certificate of one server.

    Without keys `authenticator` is None: clients are not authenticated by tokens. Without authorities
    `client_identities` is None: nor are they by certificates. Without a `certificate` no TLS is served.

    Raises:
        CredentialsError: a file cannot be used.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.authenticator = load_authenticator(settings, clock)
        self.client_identities = client_identities(settings)
        self.certificate = certificate(settings)
        self._rotation = None
        if self.authenticator is not None and settings.token_keys is not None:
            from presence.auth.key_rotation import KeyRotation  # noqa: PLC0415 - see above

            source = _key_source(settings, settings.token_keys)
            self._rotation = KeyRotation(self.authenticator, source)
            if is_url(settings.token_keys):
                self.authenticator.request_keys = self._rotation.request
        self._thread = AbandonableThread()
        self._renewed = self._failed = 0

    async def prepare(self) -> None:
        """Read the keys of a URL before the first client comes; a failure is logged, and retried by `run`."""
        if self._rotation is not None and not self._rotation.statistics().is_current:
            await self._rotation.poll()

    async def run(self, faults: Faults) -> None:
        """Read the keys repeatedly, and watch the expiry of certificates until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._rotation is not None:
                nursery.start_soon(self._rotation.run, faults)
            while self.certificate is not None:
                self._log_if_expired(self.certificate)
                await trio.sleep(EXPIRY_CHECK_INTERVAL_S)

    async def reload(self) -> None:
        """Read all files again; an invalid file is logged, and raises nothing."""
        async with trio.open_nursery() as nursery:  # a disk that hangs delays its own file only
            if self._rotation is not None:
                nursery.start_soon(self._rotation.poll)
            if self.certificate is not None:
                nursery.start_soon(self._renew, self.certificate)

    def report(self) -> dict[str, Any]:
        """Return all counters, for the log."""
        found: dict[str, Any] = {}
        if self.authenticator is not None and self._rotation is not None:
            found["tokens"] = {
                **asdict(self.authenticator.statistics()),
                **asdict(self._rotation.statistics()),
            }
        if self.certificate is not None:
            found["certificate"] = {
                "renewed": self._renewed,
                "failed": self._failed,
                "ends_at": self.certificate.ends_at.timestamp(),
            }
        return found

    async def _renew(self, certificate: "Certificate") -> None:
        try:
            certificate.use(await self._thread.call(certificate.read))
        except ValueError as error:
            self._reject(str(error))
            return
        except ThreadTimeout as error:
            self._reject(f"reading its files {error}")
            return
        self._renewed += 1
        log.info("certificate renewed", expires_at=certificate.ends_at.isoformat())
        self._log_if_expired(certificate)

    def _reject(self, problem: str) -> None:
        self._failed += 1
        log.error("certificate file rejected", error=problem)

    def _log_if_expired(self, certificate: "Certificate") -> None:
        """Log what clients, or this server, no longer accept or will soon not accept."""
        now, crl_ends_at = datetime.now(UTC), certificate.crl_ends_at
        if certificate.ends_at <= now:
            log.error("certificate expired", expires_at=certificate.ends_at.isoformat())
        if crl_ends_at is not None and crl_ends_at <= now:
            log.error("revocation list expired, clients refused", expires_at=crl_ends_at.isoformat())
        elif crl_ends_at is not None and crl_ends_at - now < CRL_RENEWED_BEFORE:
            log.warning("revocation list expires soon", expires_at=crl_ends_at.isoformat())
