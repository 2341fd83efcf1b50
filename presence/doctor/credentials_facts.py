"""What is in the files that settings name: keys, certificate, tokens of operators; and functions to call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from presence import credential_files
from presence.admin import token_file
from presence.clock import Clock
from presence.credential_files import CredentialsError
from presence.settings import Settings
from presence.timers.handlers import HandlerError, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is in the files.

    Attributes:
        keys: what is wrong with the keys; "" if nothing is, None if no file is named.
        certificate: the same of the certificate and its key.
        ends_at: until when the certificate is good; None: there is none that can be used.
        operators: the same as `keys` of the operators' tokens.
        handlers: by name, what is wrong with it; "" if nothing is.
    """

    keys: str | None
    certificate: str | None
    ends_at: datetime | None
    operators: str | None
    handlers: Mapping[str, str]


def gather(settings: Settings, handlers: Sequence[str]) -> Files:
    """Read the files, and import the handlers."""
    certificate, ends_at = _certificate(settings)
    return Files(
        keys=_keys(settings),
        certificate=certificate,
        ends_at=ends_at,
        operators=_operators(settings),
        handlers={name: _problem_with(name) for name in handlers},
    )


def _keys(settings: Settings) -> str | None:
    try:
        return None if credential_files.gate(settings, Clock()) is None else ""
    except CredentialsError as error:
        return error.problem


def _certificate(settings: Settings) -> tuple[str | None, datetime | None]:
    try:
        found = credential_files.certificate(settings)
    except CredentialsError as error:
        return error.problem, None
    return (None, None) if found is None else ("", found.ends_at)


def _operators(settings: Settings) -> str | None:
    if settings.admin_tokens is None or settings.no_admin:
        return None
    try:
        token_file.load(settings.admin_tokens)
    except token_file.TokenFileError as error:
        return str(error)
    return ""


def _problem_with(name: str) -> str:
    try:
        handler = load(name)
    except HandlerError as error:
        return str(error)
    return f"handler {name} must be a plain function" if handler.is_async else ""
