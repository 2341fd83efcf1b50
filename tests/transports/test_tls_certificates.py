"""Certificates: which files are accepted, and the errors for the others."""

import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from presence.transports.tls import Certificate, CertificateError
from tests.transports.certificates import issued, write


def test_a_certificate_with_its_key_is_loaded_from_two_files_or_one(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    certificate = Certificate(cert, key)
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert certificate.ends_at > datetime.now(UTC)
    both = tmp_path / "both.pem"
    both.write_text(cert.read_text() + key.read_text())
    assert Certificate(both).context


@pytest.mark.parametrize(
    ("file", "what", "problem"),
    [
        ("cert", "missing", "No such file or directory"),
        ("key", "missing", "No such file or directory"),
        ("cert", "fifo", "Not a regular file"),
        ("key", "fifo", "Not a regular file"),
        ("cert", "key", "holds no certificate in PEM form"),
        ("cert", "truncated", "the certificate is incomplete or damaged"),
        ("key", "cert", "holds no private key in PEM form"),
        ("key", "another's", "is not the key of {cert}"),
        ("key", "damaged", "cannot be used with {cert}"),
        ("key", "locked", "is encrypted with a password, which a server cannot ask for"),
    ],
)
def test_unusable_files_are_named_without_their_content(
    tmp_path: Path, file: str, what: str, problem: str
) -> None:
    files = dict(zip(("cert", "key"), write(tmp_path), strict=True))
    bad = files[file]
    cert, key = (each.read_bytes() for each in files.values())
    first, material, *rest = key.splitlines()
    locked = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"canary")
    )
    contents = {
        "key": key,
        "cert": cert,
        "another's": issued(1).private_key_pem.bytes(),
        "truncated": cert[: len(cert) // 2],
        "damaged": b"\n".join([first, material[::-1], *rest]),
        "locked": locked,
    }
    bad.unlink()
    if what in contents:
        bad.write_bytes(contents[what])
    elif what == "fifo":
        os.mkfifo(bad)
    with pytest.raises(CertificateError) as caught:
        Certificate(files["cert"], files["key"])
    message = str(caught.value)
    assert message.startswith(f"{bad}: {problem.format(**files)}")
    assert not any(text[:16].decode() in message for text in (material, material[::-1]))


def test_without_tls_the_cryptography_library_is_not_loaded() -> None:
    script = "import sys, presence.transports.epoll_transport; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
