"""Certificates of clients over TLS: which are accepted, and as whom; both transports behave the same."""

import socket
import ssl
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from structlog.testing import capture_logs

from presence import protocol
from presence.auth.client_certificates import CertificateIdentities
from presence.core.authenticator import Granted
from presence.protocol import Kind, Packet
from presence.transports.tls import Certificate, CertificateError, ClientVerification
from tests.support.phone import TIMEOUT_S, Phone
from tests.transports import certificates
from tests.transports.harness import Harness, TransportKind, serving
from tests.transports.issuer import FAR, Issuer, common_names

HOUR = timedelta(hours=1)
over_tls = pytest.mark.parametrize("kind", ["tls", "tls stream"])


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


def of_server(folder: Path, ca: Path, crl: Path | None = None, *, required: bool = True) -> Certificate:
    return Certificate(*certificates.write(folder), ClientVerification(ca, crl, required))


def client_context(cert: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificates.authority().configure_trust(context)
    if cert is not None:
        context.load_cert_chain(cert)
    return context


async def login(server: Harness, cert: Path | None, uid: str = "ann") -> Packet | None:
    """Connect with a certificate and log in; return the answer, None if the handshake failed.

    With TLS 1.3 a client notices the failure when it reads.
    """
    try:
        client = await server.connect(context=client_context(cert))
        await client.send(protocol.login(uid))
        return await client.receive()
    except trio.BrokenResourceError:
        return None


@over_tls
@pytest.mark.parametrize(
    ("source", "uid", "subject", "alternatives"),
    [
        ("cn", "ann", common_names("ann"), ()),
        ("cn", "änn", common_names("änn"), [x509.DNSName("other")]),
        (
            "san-uri",
            "spiffe://shop/ann",
            x509.Name([]),
            [x509.UniformResourceIdentifier("spiffe://shop/ann")],
        ),
        ("san-dns", "ann.shop", common_names("other"), [x509.DNSName("ann.shop"), x509.RFC822Name("a@b")]),
        ("san-email", "ann@shop", common_names("other"), [x509.RFC822Name("ann@shop")]),
    ],
)
async def test_a_valid_certificate_is_its_user(
    issuer: Issuer,
    tmp_path: Path,
    kind: TransportKind,
    source: str,
    uid: str,
    subject: x509.Name,
    alternatives: list[x509.GeneralName],
) -> None:
    certificate = of_server(tmp_path, issuer.ca, issuer.write_crl(issuer.issue()))
    identities = CertificateIdentities(source, time.time)
    async with serving(kind, certificate=certificate, client_certificates=identities) as server:
        answer = await login(server, issuer.issue(subject, alternatives), uid)
        assert answer is not None
        assert answer.kind == Kind.OK
        assert server.history() == [("login", uid, "login")]


INVALID: dict[str, Callable[[Issuer, Path], Path | None]] = {
    "none": lambda *_: None,
    "expired": lambda issuer, _: issuer.issue(ends=-HOUR),
    "not yet valid": lambda issuer, _: issuer.issue(starts=HOUR),
    "another authority's": lambda _, folder: Issuer(folder).issue(),
    "self-signed": lambda _, folder: Issuer(folder).ca,
    "for servers": lambda issuer, _: issuer.issue(usage=ExtendedKeyUsageOID.SERVER_AUTH),
    "revoked": lambda issuer, folder: _revoked(issuer),
}


def _revoked(issuer: Issuer) -> Path:
    issuer.write_crl(cert := issuer.issue())
    return cert


@over_tls
@pytest.mark.parametrize("what", INVALID)
async def test_an_invalid_certificate_fails_the_handshake(
    issuer: Issuer, tmp_path: Path, kind: TransportKind, what: str
) -> None:
    crl = issuer.write_crl()
    cert = INVALID[what](issuer, tmp_path)
    certificate = of_server(tmp_path, issuer.ca, crl)
    identities = CertificateIdentities("cn", time.time)
    async with serving(kind, certificate=certificate, client_certificates=identities) as server:
        assert await login(server, cert) is None
        await server.until(lambda: server.counted.handshakes_failed == 1)
        assert await login(server, issuer.issue()) is not None, "a valid one is accepted"
        assert server.counted.handshakes == 1


@over_tls
@pytest.mark.parametrize(
    ("source", "subject", "alternatives", "message"),
    [
        ("cn", common_names("bob"), [], "is another user's"),
        ("cn", common_names("ann", "bob"), [], "must have one cn, not 2"),
        ("cn", common_names("ann", "ann"), [], "must have one cn, not 2"),
        ("cn", x509.Name([]), [x509.DNSName("ann")], "must have one cn, not 0"),
        ("cn", common_names("ann lee"), [], "has a cn that is no uid"),
        ("san-dns", common_names("ann"), [], "must have one san-dns, not 0"),
        ("san-dns", common_names("ann"), [x509.DNSName("ann"), x509.DNSName("bob")], "must have one"),
        ("san-dns", common_names("ann"), [x509.RFC822Name("ann")], "must have one san-dns, not 0"),
        ("san-uri", common_names("ann"), [x509.UniformResourceIdentifier("a" * 129)], "that is no uid"),
    ],
)
async def test_a_certificate_that_does_not_name_one_user_logs_nobody_in(
    issuer: Issuer,
    tmp_path: Path,
    kind: TransportKind,
    source: str,
    subject: x509.Name,
    alternatives: list[x509.GeneralName],
    message: str,
) -> None:
    certificate = of_server(tmp_path, issuer.ca)
    identities = CertificateIdentities(source, time.time)
    async with serving(kind, certificate=certificate, client_certificates=identities) as server:
        answer = await login(server, issuer.issue(subject, alternatives))
        assert answer is not None
        assert answer.payload["code"] == 303
        assert message in answer.payload["message"]
        assert server.history() == []


@over_tls
async def test_an_authority_is_no_user(issuer: Issuer, tmp_path: Path, kind: TransportKind) -> None:
    identities = CertificateIdentities("cn", time.time)
    async with serving(
        kind, certificate=of_server(tmp_path, issuer.ca), client_certificates=identities
    ) as server:
        answer = await login(server, issuer.ca, "users")
        assert answer is not None
        assert "is that of an authority" in answer.payload["message"]
        assert server.history() == []


def test_an_expired_certificate_logs_nobody_in(issuer: Issuer) -> None:
    cert = x509.load_pem_x509_certificate(issuer.issue().read_bytes())
    der = cert.public_bytes(Encoding.DER)
    ends_at = cert.not_valid_after_utc.timestamp()
    assert CertificateIdentities("cn", lambda: ends_at - 5).login(der, None, 50.0) == Granted("ann", 55.0)
    assert "has expired" in str(CertificateIdentities("cn", lambda: ends_at).login(der, None, 50.0))


@over_tls
async def test_an_optional_certificate_may_be_missing_but_not_invalid(
    issuer: Issuer, tmp_path: Path, kind: TransportKind
) -> None:
    async with serving(kind, certificate=of_server(tmp_path, issuer.ca, required=False)) as server:
        assert await login(server, None) is not None
        assert await login(server, issuer.issue(ends=-HOUR)) is None


@over_tls
async def test_with_an_expired_revocation_list_all_are_refused(
    issuer: Issuer, tmp_path: Path, kind: TransportKind
) -> None:
    crl = issuer.write_crl(ends=-HOUR)
    async with serving(kind, certificate=of_server(tmp_path, issuer.ca, crl)) as server:
        with capture_logs() as lines:
            assert await login(server, issuer.issue()) is None
            await server.until(lambda: server.counted.handshakes_failed == 1)
        assert [(line["event"], line["reason"]) for line in lines] == [
            ("client certificate refused", "CRL has expired")
        ]


@over_tls
async def test_a_returning_client_is_verified_again(
    issuer: Issuer, tmp_path: Path, kind: TransportKind
) -> None:
    context = client_context(cert := issuer.issue())
    certificate = of_server(tmp_path, issuer.ca, issuer.write_crl())

    def returns(address: tuple[str, int], session: ssl.SSLSession | None) -> tuple[ssl.SSLSession, bool]:
        """Log in; return the session of TLS, and whether it was resumed."""
        tcp = socket.create_connection(address, TIMEOUT_S)
        with context.wrap_socket(tcp, server_hostname=certificates.HOST, session=session) as tls:
            assert Phone(tls).ask(protocol.login("ann", id=1)).kind == Kind.OK
            assert tls.session is not None
            assert tls.session_reused is not None
            return tls.session, tls.session_reused

    async with serving(kind, certificate=certificate) as server:
        session, _ = await trio.to_thread.run_sync(returns, server.address, None)
        session, is_resumed = await trio.to_thread.run_sync(returns, server.address, session)
        assert not is_resumed
        issuer.write_crl(cert)
        certificate.use(certificate.read())
        with pytest.raises((ConnectionError, ssl.SSLError, AssertionError)):
            await trio.to_thread.run_sync(returns, server.address, session)


async def test_tls_1_2_which_resumes_sessions_without_tickets_is_refused(
    issuer: Issuer, tmp_path: Path
) -> None:
    context = client_context(issuer.issue())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving("tls", certificate=of_server(tmp_path, issuer.ca)) as server:
        with pytest.raises(trio.BrokenResourceError):
            await server.connect(context=context)


# Files


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("ca", "missing", "No such file or directory"),
        ("crl", "missing", "No such file or directory"),
        ("ca", "nonsense", "cannot be used to verify clients"),
        ("crl", "nonsense", "does not hold revocation lists in PEM form"),
        ("ca", "leaf", "must hold certificates of authorities, and no others"),
        ("ca", "crl", "must hold certificates of authorities, and no others"),
        ("crl", "ca", "does not hold revocation lists in PEM form"),
        ("crl", "crl and another ca", "must hold revocation lists only, and no certificate"),
        ("crl", "damaged", "does not hold revocation lists in PEM form"),
    ],
)
def test_unusable_files_are_named(
    issuer: Issuer, tmp_path: Path, file: str, content: str, problem: str
) -> None:
    ca, crl = issuer.ca.read_text(), issuer.write_crl().read_text()
    contents = {
        "nonsense": "x",
        "leaf": issuer.issue().read_text(),
        "crl": crl,
        "ca": ca,
        "crl and another ca": crl + Issuer(tmp_path).ca.read_text(),
        "damaged": crl + crl.replace("M", "N", 3),
    }
    bad = tmp_path / "bad.pem"
    if content in contents:
        bad.write_text(contents[content])
    files = {"ca": issuer.ca, "crl": issuer.write_crl(), file: bad}
    with pytest.raises(CertificateError) as caught:
        of_server(tmp_path, files["ca"], files["crl"])
    assert str(caught.value).startswith(f"{bad}: {problem}")


def test_the_first_revocation_list_to_expire_counts(issuer: Issuer, tmp_path: Path) -> None:
    lists = issuer.write_crl(ends=HOUR).read_text() + issuer.write_crl(ends=FAR).read_text()
    (tmp_path / "lists.pem").write_text(lists)
    certificate = of_server(tmp_path, issuer.ca, tmp_path / "lists.pem")
    assert certificate.crl_ends_at is not None
    assert abs(certificate.crl_ends_at.timestamp() - time.time() - HOUR.total_seconds()) < 60
