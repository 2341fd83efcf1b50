"""Keys that tokens are checked with: each has a name (`kid`) and one algorithm, and is used for no other.

A key is looked up by both, so that a token can choose neither an algorithm for a key nor a key for an
algorithm. The material is as in RFC 7517 (JSON Web Key); PyJWT checks the signatures.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import jwt
from jwt.utils import base64url_encode

HS256: Final = "HS256"
RS256: Final = "RS256"
ES256: Final = "ES256"
EDDSA: Final = "EdDSA"
SECRET_BYTES: Final = 32  # of HS256: the length of the hash (RFC 7518, section 3.2)
RSA_EXPONENT: Final = 65537
# The members that signatures are checked with, by algorithm; others in the file are ignored.
PUBLIC: Final[Mapping[str, tuple[str, ...]]] = {
    HS256: ("k",),
    RS256: ("n", "e"),
    ES256: ("crv", "x", "y"),
    EDDSA: ("crv", "x"),
}
KTY: Final[Mapping[str, str]] = {HS256: "oct", RS256: "RSA", ES256: "EC", EDDSA: "OKP"}
CURVES: Final[Mapping[str, str]] = {ES256: "P-256", EDDSA: "Ed25519"}
ALGORITHMS: Final = tuple(PUBLIC)

_MEASUREMENTS: Final = 5
_JWS: Final = jwt.PyJWS(algorithms=ALGORITHMS)
_SAMPLE: Final = jwt.encode({"sub": "u" * 20, "aud": "presence"}, secrets.token_bytes(SECRET_BYTES), HS256)


class InvalidKey(Exception):
    """A key that cannot, or must not, be used; the message does not show its material."""


class KeySetError(Exception):
    """A file or a URL yields no keys; the message names it and the wrong key, and shows no material."""


class SignatureRefused(Exception):
    """A token is not signed by the key."""


class Key:
    """One key, of an algorithm of `ALGORITHMS`. Its `repr` shows none of its material.

    `material` has members of a JSON Web Key, those of `PUBLIC` among them. `cost_s` is the processor time of
    one check, see `measure`.

    Raises:
        InvalidKey: the material is invalid.
    """

    __slots__ = ("_jwk", "alg", "cost_s", "kid")

    def __init__(self, kid: str, alg: str, material: Mapping[str, Any]) -> None:
        self.kid = kid
        self.alg = alg
        self.cost_s = 0.0
        members = {name: material[name] for name in PUBLIC[alg] if name in material}
        try:
            self._jwk = jwt.PyJWK({"kty": KTY[alg], "alg": alg, **members})
        except Exception:  # PyJWT's messages, and some of their causes, show the material
            raise InvalidKey(f"its {' or '.join(PUBLIC[alg])} is not as RFC 7518 has it") from None

    def __repr__(self) -> str:
        return f"Key({self.kid!r}, {self.alg!r})"

    @property
    def bits(self) -> int:
        key: Any = self._jwk.key
        return len(key) * 8 if isinstance(key, bytes) else getattr(key, "key_size", 256)

    def verify(self, token: str) -> bytes:
        """Return the payload of a token that this key has signed.

        Raises:
            SignatureRefused: the signature is not of this key, or this is no token.
        """
        try:
            payload: bytes = _JWS.decode_complete(token, self._jwk, algorithms=[self.alg])["payload"]
        except jwt.PyJWTError:
            raise SignatureRefused from None
        return payload

    def measure(self, meter: Callable[[], float] = time.thread_time) -> None:
        """Measure the cost of a check: the fastest of a few, because interruptions only make it slower."""
        token = self._sample()
        times = []
        for _ in range(_MEASUREMENTS):
            begun = meter()
            try:
                self.verify(token)
            except SignatureRefused:
                times.append(meter() - begun)
        self.cost_s = min(times)

    def _sample(self) -> str:
        """Make a token of this algorithm whose wrong signature takes a full check to detect.

        RSA refuses without a check what is not below the modulus, ECDSA and Ed25519 what is not below the
        order of their group; the first two begin with the most significant digits, the last ends with them.
        """
        header = base64url_encode(f'{{"alg":"{self.alg}","kid":"sample"}}'.encode()).decode()
        size = {HS256: SECRET_BYTES, RS256: self.bits // 8}.get(self.alg, 64)
        signature = base64url_encode(b"\0" + secrets.token_bytes(size - 2) + b"\0").decode()
        return f"{header}.{_SAMPLE.split('.')[1]}.{signature}"


class Keyring:
    """Keys by name and algorithm.

    `digest` is `key_file.digest` of their set, and `ignored` how many entries of that set are not among them.
    """

    def __init__(self, keys: Iterable[Key], digest: bytes = b"", ignored: int = 0) -> None:
        self.digest = digest
        self.ignored = ignored
        self._keys = {(key.kid, key.alg): key for key in keys}
        for key in self._keys.values():
            key.measure()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def kids(self) -> frozenset[str]:
        return frozenset(kid for kid, _ in self._keys)

    def find(self, kid: str, alg: str) -> Key | None:
        return self._keys.get((kid, alg))
