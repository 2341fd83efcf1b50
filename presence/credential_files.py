"""The files that have to be sound before a server starts: keys, its certificate, the tokens of operators.

They are opened here and nowhere else; what opens them is loaded when a setting asks for it, for it takes a
quarter of a second and 10 MB.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from presence.clock import Clock
from presence.settings import Settings

if TYPE_CHECKING:
    from presence.auth.gate import TokenGate
    from presence.transports.tls import Certificate


class CredentialsError(Exception):
    """A file is not as it has to be; the text names setting and file, and shows no secret.

    Attributes:
        setting: which names the file.
        problem: what is wrong.
    """

    def __init__(self, setting: str, problem: Exception) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = str(problem)


def load_modules(settings: Settings) -> None:
    """Import what a worker with these settings uses, for a process that forks workers as long as it lives.

    Later the files of these modules may be those of another version.
    """
    if settings.token_keys is not None:
        import presence.auth.gate  # noqa: PLC0415 - see above
        import presence.auth.rotation  # noqa: PLC0415 - see above
    if settings.tls_cert is not None:
        import presence.transports.tls  # noqa: F401, PLC0415 - see above


def gate(settings: Settings, clock: Clock) -> "TokenGate | None":
    """Return whoever checks tokens; None where no setting asks for it.

    Raises:
        CredentialsError: the keys cannot be used.
    """
    if settings.token_keys is None:
        return None
    from presence.auth.gate import from_settings  # noqa: PLC0415 - see above
    from presence.auth.key_file import KeyFileError  # noqa: PLC0415 - see above

    try:
        return from_settings(settings, clock, time.time)
    except KeyFileError as error:
        raise CredentialsError("token_keys", error) from None


def certificate(settings: Settings) -> "Certificate | None":
    """Return the certificate; None where no setting asks for it.

    Raises:
        CredentialsError: it, or its key, cannot be used.
    """
    if settings.tls_cert is None:
        return None
    from presence.transports.tls import Certificate, CertificateError  # noqa: PLC0415 - see above

    try:
        return Certificate(settings.tls_cert, settings.tls_key)
    except CertificateError as error:
        is_key = settings.tls_key is not None and str(error).startswith(f"{settings.tls_key}:")
        raise CredentialsError("tls_key" if is_key else "tls_cert", error) from None


def problems(settings: Settings) -> Iterator[CredentialsError]:
    """Give what is wrong with the files as they are now."""
    for opened in (lambda: gate(settings, Clock()), lambda: certificate(settings)):
        try:
            opened()
        except CredentialsError as error:
            yield error


def problems_of_operators(settings: Settings) -> Iterator[CredentialsError]:
    """Give what is wrong with the tokens of operators as they are now; no worker needs them."""
    if settings.admin_tokens is None or settings.no_admin:
        return
    from presence.admin import token_file  # noqa: PLC0415 - see above

    try:
        token_file.load(settings.admin_tokens)
    except token_file.TokenFileError as error:
        yield CredentialsError("admin_tokens", error)
