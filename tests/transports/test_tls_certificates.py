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


@pytest.mark.parametrize("given", ["missing", "fifo"])
@pytest.mark.parametrize("setting", ["cert", "key"])
def test_what_is_no_regular_file_is_named_at_once(tmp_path: Path, setting: str, given: str) -> None:
    files = dict(zip(("cert", "key"), write(tmp_path), strict=True))
    files[setting] = tmp_path / given
    if given == "fifo":
        os.mkfifo(files[setting])
    why = "Not a regular file" if given == "fifo" else "No such file or directory"
    assert problem(files["cert"], files["key"]) == f"{files[setting]}: {why}"


def test_files_that_hold_something_else_are_named(tmp_path: Path) -> None:
    cert, key = write(tmp_path)
    assert problem(cert, None) == f"{cert}: holds no private key in PEM form"
    assert problem(key, key) == f"{key}: does not begin with a certificate in PEM form"
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
