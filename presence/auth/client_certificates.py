"""Whom a client certificate names. TLS has verified it: chain, period, purpose and revocation.

Refusals say what is wrong with the certificate, because only its owner can present it.

Tests: `tests/transports/test_client_certificates.py`.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.x509.oid import NameOID

from presence.auth.tokens import is_uid
from presence.core.authenticator import AuthResult, Granted, Refusal
from presence.protocol import Code

_AlternativeName: TypeAlias = type[x509.UniformResourceIdentifier | x509.DNSName | x509.RFC822Name]
_ALTERNATIVE_NAMES: Final[dict[str, _AlternativeName]] = {
    "san-uri": x509.UniformResourceIdentifier,
    "san-dns": x509.DNSName,
    "san-email": x509.RFC822Name,
}


class CertificateIdentities:
    """Finds the user of a certificate; see `presence.core.authenticator.CertificateAuthenticator`.

    Args:
        source: the part that holds the uid, as in the setting `tls_client_uid`.
        wall: the machine's clock, in Unix seconds.
    """

    def __init__(self, source: str, wall: Callable[[], float]) -> None:
        self._source = source
        self._wall = wall

    def login(self, certificate: bytes, uid: str | None, now: float) -> AuthResult:
        try:
            parsed = x509.load_der_x509_certificate(certificate)
            names, is_authority = list(self._names(parsed)), _is_authority(parsed)
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
            return _refusal("is malformed")
        if is_authority:
            return _refusal("is that of an authority")
        if len(names) != 1:
            return _refusal(f"must have one {self._source}, not {len(names)}")
        (name,) = names
        if not isinstance(name, str) or not is_uid(name):
            return _refusal(f"has a {self._source} that is no uid")
        if uid is not None and uid != name:
            return _refusal("is another user's")
        remaining_s = parsed.not_valid_after_utc.timestamp() - self._wall()
        return Granted(name, now + remaining_s) if remaining_s > 0 else _refusal("has expired")

    def _names(self, certificate: x509.Certificate) -> Iterable[str | bytes]:
        if self._source == "cn":
            return (each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
        try:
            found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return ()
        return found.value.get_values_for_type(_ALTERNATIVE_NAMES[self._source])


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _refusal(problem: str) -> Refusal:
    return Refusal(Code.AUTH_FAILED, f"the client certificate {problem}")
