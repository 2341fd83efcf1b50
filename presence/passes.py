"""Passes: an application's backend lets one of its users see some others for a time.

Where the server has the setting ``visibility = "claims"``, a user sees only those whom the claim `see` of its
token names. A pass adds others, without a new token: a signed text, which the backend gives to the client
and the client to the server, as `Client.add_pass` does::

    passes = PassIssuer("keys.json")
    text = passes.issue("ann", ["bob", "team-7-*"], ttl_s=3600)

It needs the extra ``server``, for the signature.

Tests: `tests/auth/test_passes.py`.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from presence.auth import key_file
from presence.auth.signing_keys import InvalidKey, KeySetError
from presence.auth.token_signer import CannotSign, Signer
from presence.auth.tokens import is_seeing_uid, is_sight

__all__ = ["CannotSign", "InvalidKey", "KeySetError", "PassIssuer"]


class PassIssuer:
    """Signs passes with a private key of a key file, as ``presence token keygen`` makes it.

    Args:
        keys: the file.
        kid: the name of the key; None: the last one of the file.
        audience: that of the servers' tokens, their setting `token_audience`.
        issuer: their setting `token_issuer`, if they have one.

    Raises:
        KeySetError, InvalidKey: the file cannot be read, or has no such key.
        CannotSign: it has only the public part of the key.
    """

    def __init__(
        self,
        keys: str | Path,
        *,
        kid: str | None = None,
        audience: str = "presence",
        issuer: str | None = None,
    ) -> None:
        entries = key_file.entries_of(key_file.read(Path(keys)))
        self._signer = Signer(key_file.named(entries, kid))
        self._audience = audience
        self._claims = {} if issuer is None else {"iss": issuer}

    def issue(self, uid: str, see: Iterable[str], *, ttl_s: float) -> str:
        """Return a pass.

        Args:
            uid: the user who may see others, without ``*`` at the end; the pass is of no use to anybody else.
            see: whom: uids, and beginnings of uids with a ``*`` after them; some hundred uids fit.
            ttl_s: for how many seconds, above 0, rounded up.

        Raises:
            ValueError: a uid breaks the rules of the protocol.
            CannotSign: servers would refuse the pass: it is longer than the protocol allows, or its time is
                not above 0.
        """
        seen = [*see]
        if not is_seeing_uid(uid) or not is_sight(seen):
            raise ValueError("a pass is for a uid, and names uids, or beginnings of uids with a * after them")
        return self._signer.visibility_pass(
            uid, seen, audience=self._audience, now=time.time(), ttl_s=ttl_s, **self._claims
        )
