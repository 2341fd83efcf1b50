"""Certificates: which files are taken, what is said of those that are not, and what a reload changes."""

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


def problem(cert: Path, key: Path | None) -> str:
    with pytest.raises(CertificateError) as caught:
        Certificate(cert, key)
    return str(caught.value)


def test_a_certificate_with_its_key_is_taken(tmp_path: Path) -> None:
    certificate = Certificate(*write(tmp_path))
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert certificate.ends_at > datetime.now(UTC)


def test_both_may_be_in_one_file(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    both = tmp_path / "both.pem"
    both.write_text(cert.read_text() + key.read_text())
    assert Certificate(both).context


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    missing = tmp_path / "missing.pem"
    assert problem(missing, key) == f"{missing}: No such file or directory"
    assert problem(cert, missing) == f"{missing}: No such file or directory"


def test_a_fifo_is_named_at_once(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert problem(fifo, key) == f"{fifo}: Not a regular file"
    assert problem(cert, fifo) == f"{fifo}: Not a regular file"


def test_a_file_without_a_certificate_is_named(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    cert.write_text("nothing of the kind\n")
    assert problem(cert, key) == f"{cert}: does not begin with a certificate in PEM form"


def test_a_file_without_a_key_is_named(tmp_path: Path) -> None:
    cert, _ = write(tmp_path)
    assert problem(cert, None) == f"{cert}: holds no private key in PEM form"


def test_the_key_of_another_certificate_is_named(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    key.write_bytes(issued(1).private_key_pem.bytes())
    assert problem(cert, key) == f"{key}: is not the key of {cert}"


def test_a_damaged_key_is_named_and_nothing_of_it_said(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    lines = key.read_text().splitlines()
    material = lines[1]
    key.write_text("\n".join([lines[0], material[::-1], *lines[2:]]))
    said = problem(cert, key)
    assert said.startswith(f"{key}: cannot be used with {cert}")
    assert material[:16] not in said
    assert material[::-1][:16] not in said


def test_a_key_with_a_password_asks_nobody_for_it(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    plain = load_pem_private_key(key.read_bytes(), None)
    locked = plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"canary"))
    key.write_bytes(locked)
    assert problem(cert, key) == f"{key}: is locked with a password, and nobody is there to type it"


def test_without_tls_nobody_waits_for_cryptography() -> None:
    script = "import sys, presence.transports.epoll; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
