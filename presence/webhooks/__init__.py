"""Events as signed HTTP requests, sent by ``presence webhooks run``; see `docs/webhooks.md`.

A receiver checks the signature of each request before it believes the body::

    from presence.webhooks import SIGNATURE_HEADER, verify

    verify(headers[SIGNATURE_HEADER], body, secret)  # raises SignatureError
"""

from presence.webhooks.signature import SIGNATURE_HEADER, SignatureError, sign, verify

__all__ = ["SIGNATURE_HEADER", "SignatureError", "sign", "verify"]
