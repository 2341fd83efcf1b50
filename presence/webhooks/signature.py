"""Signatures of requests: HMAC-SHA256 over time and body, in the form that Stripe uses.

::

    Presence-Signature: t=1700000000,v1=5257a869e7…,v1=b2a1f0…

`t` is the time of sending in Unix seconds. Each `v1` is the signature by one secret, in hexadecimal digits,
of the digits of `t`, a full stop, and the body. There are two while the secret is being replaced. Because the
time is signed too, a recorded request cannot be replayed later.
"""

import hmac
import time
from collections.abc import Sequence
from typing import Final

SIGNATURE_HEADER: Final = "Presence-Signature"
TOLERANCE_S: Final = 300.0  # between the clocks of sender and receiver, and on the way


class SignatureError(Exception):
    """A request is not one of ours, was changed on its way, or is too old."""


def sign(body: bytes, secrets: Sequence[bytes], at_s: int) -> str:
    """Return the header's value for a body sent at `at_s`, Unix seconds.

    Raises:
        ValueError: a secret is empty.
    """
    return ",".join([f"t={at_s}", *(f"v1={_digest(body, secret, at_s)}" for secret in secrets)])


def verify(
    header: str, body: bytes, secret: bytes, *, tolerance_s: float = TOLERANCE_S, now_s: float | None = None
) -> None:
    """Check the signature of a request.

    Args:
        header: the value of the header `SIGNATURE_HEADER`; "" if there is none.
        body: exactly as it was received.
        secret: the receiver's.
        tolerance_s: how far the time of sending may be from now.
        now_s: Unix seconds; this machine's clock without it.

    Raises:
        SignatureError: do not believe the request.
        ValueError: the secret is empty, as of a variable that is not set, so that everyone could sign.
    """
    fields = [field.partition("=")[::2] for field in header.split(",")]
    times = [value for name, value in fields if name == "t" and value.isascii() and value.isdigit()]
    if len(times) != 1 or len(times[0]) > 15:
        raise SignatureError("the request has no signature")
    expected = _digest(body, secret, int(times[0])).encode()
    if not any(
        name == "v1" and hmac.compare_digest(value.encode("utf-8", "replace"), expected)
        for name, value in fields
    ):
        raise SignatureError("the signature is not of this body and secret")
    if abs((time.time() if now_s is None else now_s) - int(times[0])) > tolerance_s:
        raise SignatureError("the request is too old, or from the future")


def _digest(body: bytes, secret: bytes, at_s: int) -> str:
    if not secret.strip():
        raise ValueError("the secret is empty")
    return hmac.new(secret, b"%d.%b" % (at_s, body), "sha256").hexdigest()
