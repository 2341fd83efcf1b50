"""An authority that signs any certificate for clients, also unusual ones, and revocation lists."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FAR = timedelta(days=30)


def common_names(*values: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, value) for value in values])


class Issuer:
    """An authority with files in a folder; a certificate's file also holds its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = common_names("users")
        self._serials: dict[Path, int] = {}
        self.ca = self.issue(subject=self._name, is_authority=True, key=self._key)

    def issue(
        self,
        subject: x509.Name | None = None,
        alternatives: Sequence[x509.GeneralName] = (),
        *,
        usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
        starts: timedelta = -FAR,
        ends: timedelta = FAR,
        is_authority: bool = False,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Path:
        """Return the file of a new certificate, of the user `ann` by default; times count from now."""
        key, now = key or ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(common_names("ann") if subject is None else subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial := x509.random_serial_number())
            .not_valid_before(now + starts)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(_key_usage(is_authority), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if not is_authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if alternatives:
            names = x509.SubjectAlternativeName(alternatives)
            builder = builder.add_extension(names, critical=subject is not None and not subject.rdns)
        file = self._folder / f"{serial}.pem"
        file.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        self._serials[file] = serial
        return file

    def write_crl(self, *revoked: Path, ends: timedelta = FAR) -> Path:
        """Write the list of revoked certificates, in place of an earlier one; return its file."""
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._name)
        builder = builder.last_update(datetime.now(UTC) - FAR).next_update(datetime.now(UTC) + ends)
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(self._serials[each])
            builder = builder.add_revoked_certificate(
                entry.revocation_date(datetime.now(UTC) - timedelta(days=1)).build()
            )
        file = self._folder / "users.crl"
        file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return file


def _key_usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
