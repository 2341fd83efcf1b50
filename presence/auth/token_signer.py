"""Make keys and sign tokens, as an issuer does; servers never do.

Tests: `tests/auth/test_tokens.py`, `tests/auth/test_signing_keys.py`, `tests/cli/test_token.py`.
"""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode

from presence.auth.key_file import key_of
from presence.auth.signing_keys import (
    ES256,
    HS256,
    KTY,
    PUBLIC,
    RS256,
    RSA_EXPONENT,
    SECRET_BYTES,
    InvalidKey,
)
from presence.auth.tokens import LATEST_S, is_seeing_uid, pass_audience
from presence.protocol.constants import PASS_MAX_BYTES, TOKEN_MAX_BYTES

RSA_BITS: Final = 2048


class CannotSign(Exception):
    """The key cannot sign such a token; the message does not show the key."""


def make_key(kid: str, alg: str) -> dict[str, Any]:
    """Return a new key as an entry of a key file, with its private part.

    Raises:
        InvalidKey: `kid` cannot name a key, or `alg` is no algorithm.
    """
    if alg == HS256:
        material = {"k": base64url_encode(secrets.token_bytes(SECRET_BYTES)).decode()}
    elif alg == RS256:
        material = RSAAlgorithm.to_jwk(rsa.generate_private_key(RSA_EXPONENT, RSA_BITS), as_dict=True)
    elif alg == ES256:
        material = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True)
    else:
        material = OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate(), as_dict=True)
    material.pop("key_ops", None)
    entry = {"kid": kid, "alg": alg, "kty": KTY.get(alg), **material}
    key_of(entry)
    return entry


def public_entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a key, of any algorithm but HS256, that a server needs."""
    members = ("kid", "alg", "kty", *PUBLIC[entry["alg"]])
    return {name: entry[name] for name in members}


class Signer:
    """Signs tokens with one key; make it once for many tokens, because reading an RS256 key takes 50 ms.

    Raises:
        CannotSign: the entry has no private part.
        InvalidKey: the entry is no key.
    """

    def __init__(self, entry: Mapping[str, Any]) -> None:
        key = key_of(entry)
        if key.alg != HS256 and "d" not in entry:
            raise CannotSign("it is the public part of a key alone, and signs nothing")
        self._headers = {"kid": key.kid}
        self._alg = key.alg
        self._algorithm = jwt.get_algorithm_by_name(key.alg)
        try:
            self._key = self._algorithm.prepare_key(jwt.PyJWK({**entry}).key)
        except Exception:  # PyJWT's messages may show the material
            raise InvalidKey("its private part is not as RFC 7518 has it") from None

    def sign(self, data: bytes) -> bytes:
        return self._algorithm.sign(data, self._key)

    def token(
        self,
        uid: str,
        *,
        audience: str,
        now: float,
        ttl_s: float,
        max_bytes: int = TOKEN_MAX_BYTES,
        **claims: Any,
    ) -> str:
        """Return a token that identifies the user `uid` for `ttl_s` seconds, rounded up.

        `now` is in Unix seconds; `claims` are further claims, or replacements of these.

        Raises:
            CannotSign: servers would refuse the token: it is longer than the protocol allows, or its time is
                not above 0, or ends after the year 9999.
        """
        if not 0 < ttl_s <= LATEST_S - now - 1:
            raise CannotSign(
                f"a token lasts for more than 0 s, and ends before the year 10000, not {ttl_s:g} s"
            )
        issued = math.floor(now)
        payload = {"sub": uid, "aud": audience, "iat": issued, "exp": issued + math.ceil(ttl_s), **claims}
        token = jwt.encode(payload, self._key, algorithm=self._alg, headers=self._headers)
        if len(token) > max_bytes:
            raise CannotSign(f"the token has {len(token)} bytes, and the protocol takes {max_bytes}")
        return token

    def visibility_pass(
        self, uid: str, see: Sequence[str], *, audience: str, now: float, ttl_s: float, **claims: Any
    ) -> str:
        """Return a pass: the user `uid` may see others for `ttl_s` seconds; see `presence.passes`.

        Raises:
            CannotSign: as of `token`; or no server would take a pass for this uid.
        """
        if not is_seeing_uid(uid):
            raise CannotSign("a pass is for a uid without * at its end, which stands for beginnings of uids")
        audience = pass_audience(audience)
        return self.token(
            uid, audience=audience, now=now, ttl_s=ttl_s, max_bytes=PASS_MAX_BYTES, see=[*see], **claims
        )


def make_token(entry: Mapping[str, Any], uid: str, **parts: Any) -> str:
    """Return one token for `uid`; `parts` are arguments of `Signer.token`."""
    return Signer(entry).token(uid, **parts)


def key_set(entries: list[Any]) -> str:
    """Return the text of a key file."""
    return json.dumps({"keys": entries}, indent=2) + "\n"
