"""Tokens that must never be accepted: valid ones, each changed in one respect. Deterministic by the seed.

Three kinds of change: what a thief of one token can do (altered parts, with the old signature or one by the
thief's own key); what a careless issuer can do (correctly signed, with claims that do not hold); and any one
character altered, which has to make another token of it.
"""

import base64
import json
import random
import string
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from jwt.algorithms import HMACAlgorithm

from presence.auth.signing_keys import ALGORITHMS, PUBLIC
from presence.auth.token_signer import Signer, make_key, public_entry

TTL_S = 3600
AUDIENCE = "presence"
Entry: TypeAlias = Mapping[str, Any]
Headers: TypeAlias = dict[str, Any]
Mutation: TypeAlias = Callable[[], str]

_ALPHABET = string.ascii_letters + string.digits + "-_"
# Invalid values of each claim or header; values other than strings come last.
_WRONG_AUDIENCES: tuple[Any, ...] = (
    *("", "other", "PRESENCE", None, [], ["other"], 7, True, {"presence": 1}, [[]]),
)
_WRONG_ENDS: tuple[Any, ...] = ("9999999999", None, -1, 0, 1, True, [], {}, 1e300, float("nan"), float("inf"))
_WRONG_SUBJECTS: tuple[Any, ...] = (
    *("", "a b", "a\n", "{a}", "a" * 129, "\ud800", "a\0", None, 7, True, [], ["ann"], {}),
)
_WRONG_KIDS: tuple[Any, ...] = (
    *("", "nobody", "../../etc/passwd", "' OR 1=1 --", "k" * 65, None, 7, True, [], {}),
)
_WRONG_ALGS: tuple[Any, ...] = (
    *("", "none", "None", "NONE", "nOnE", "HS384", "ES384", "PS256", "hs256", "EdDSA "),
    *(None, 7, [], ["HS256"]),
)


def mutations(
    entry: Entry, uid: str, *, seed: int, others: Sequence[Entry] = (), now: float | None = None
) -> Iterator[tuple[str, str]]:
    """Return an endless iterator of changes of a user's token: what was changed, and the token.

    Args:
        entry: the key that signs valid tokens, with its private part.
        uid: the user of the tokens.
        seed: gives the same changes each time, at the same `now`.
        others: more keys that the server knows, to mix them up with; also of other algorithms.
        now: Unix seconds; None: the current time.
    """
    mutator = Mutator(entry, others, uid, time.time() if now is None else now, seed)
    while True:
        for kind, mutate in mutator.kinds.items():
            yield kind, mutate()


class Mutator:
    """Changes of tokens for one user, see `mutations`.

    Attributes:
        kinds: functions that make a changed token, by the kind of change.
    """

    def __init__(self, entry: Entry, others: Sequence[Entry], uid: str, now: float, seed: int) -> None:
        self._entry = entry
        self._signer = Signer(entry)
        self._others = [each for each in others if each["kid"] != entry["kid"]]
        self._uid = uid
        self._now = now
        self._random = random.Random(seed)
        self._stranger = make_key(entry["kid"], entry["alg"])
        self._strange_signer = Signer(self._stranger)
        self.kinds: dict[str, Mutation] = {
            "signature": self._signature,
            "alg": self._alg,
            "kid": self._kid,
            "aud": self._aud,
            "exp": self._exp,
            "sub": self._sub,
            "header": self._header,
            "form": self._form,
            "character": self._character,
        }

    def good(self) -> str:
        """Return a valid token."""
        return self._signed({})

    def _signed(self, claims: Mapping[str, Any], signer: Signer | None = None) -> str:
        return (signer or self._signer).token(
            self._uid,
            audience=AUDIENCE,
            now=self._now,
            ttl_s=TTL_S + self._random.randrange(TTL_S),
            **claims,
        )

    def _signed_as(self, headers: Headers, sign: Callable[[bytes], bytes] | None = None) -> str:
        """Return a valid token with other headers, signed by its key or by `sign`."""
        signing = f"{_packed(headers)}.{self.good().split('.')[1]}"
        return f"{signing}.{_encoded((sign or self._signer.sign)(signing.encode()))}"

    def _headers(self) -> Headers:
        return {"alg": self._entry["alg"], "kid": self._entry["kid"], "typ": "JWT"}

    # One method for each kind of change

    def _signature(self) -> str:
        head, _, signature = self.good().rpartition(".")
        raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
        match self._random.randrange(7):
            case 0:
                raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
            case 1:
                del raw[self._random.randrange(len(raw)) :]
            case 2:
                raw += self._random.randbytes(1 + self._random.randrange(8))
            case 3:
                raw[:] = bytes(len(raw))
            case 4:
                raw[:] = self._random.randbytes(len(raw))
            case 5:  # of another token
                return f"{head}.{self._signed({'jti': str(self._random.random())}).rpartition('.')[2]}"
            case _:  # by the thief's own key, with the same name
                return self._signed({}, self._strange_signer)
        return f"{head}.{_encoded(bytes(raw))}"

    def _alg(self) -> str:
        headers = self._headers()
        how = self._random.randrange(5)
        if how == 0:
            headers["alg"] = self._random.choice(_WRONG_ALGS)
            return self._signed_as(headers, self._random.choice((None, lambda _: b"")))
        if how == 1:  # the public part of a key used as a secret
            public = json.dumps(public_entry(self._entry) if self._entry["alg"] != "HS256" else {}).encode()
            return self._signed_as({**headers, "alg": "HS256"}, _hmac(public, "HS256"))
        if how == 2:  # the same secret with another hash
            secret = base64.urlsafe_b64decode(self._entry[PUBLIC[self._entry["alg"]][-1]] + "==")
            return self._signed_as({**headers, "alg": "HS512"}, _hmac(secret, "HS512"))
        if how == 3:
            del headers["alg"]
            return self._signed_as(headers)
        others = [alg for alg in ALGORITHMS if alg != self._entry["alg"]]
        return self._signed_as({**headers, "alg": self._random.choice(others)})

    def _kid(self) -> str:
        headers = self._headers()
        how = self._random.randrange(3)
        if how == 0 and self._others:
            headers["kid"] = self._random.choice(self._others)["kid"]
        elif how == 1:
            del headers["kid"]
        else:
            headers["kid"] = self._random.choice(_WRONG_KIDS)
        return self._signed_as(headers)

    def _aud(self) -> str:
        audience = self._random.choice((*_WRONG_AUDIENCES, AUDIENCE[:-1], f"{AUDIENCE}x"))
        return self._signed({"aud": audience})

    def _exp(self) -> str:
        now = int(self._now)
        past, later = now - self._random.randrange(10**6), now + TTL_S
        ends = (*_WRONG_ENDS, now, past, later * 1000, str(later))
        claims = [{"exp": end} for end in ends]
        return self._signed(self._random.choice([*claims, {"nbf": later}, {"nbf": "now"}, {"nbf": None}]))

    def _sub(self) -> str:
        if self._random.randrange(2):
            return self._signed({"sub": self._random.choice(_WRONG_SUBJECTS)})
        header, payload, signature = self.good().split(".")  # another user's name under the old signature
        claims = {**json.loads(base64.urlsafe_b64decode(payload + "==")), "sub": f"{self._uid}x"}
        return f"{header}.{_packed(claims)}.{signature}"

    def _header(self) -> str:
        """Return a token whose header contains its own key, or an unknown critical extension."""
        stranger = self._stranger
        brought = {"jwk": dict(public_entry(stranger))} if stranger["alg"] != "HS256" else {"x5u": "file:///"}
        asked = ({"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}, {"b64": True})
        if how := self._random.randrange(4):
            return self._signed_as({**self._headers(), **asked[how - 1]})
        return self._signed_as({**self._headers(), **brought}, self._strange_signer.sign)

    def _form(self) -> str:
        token = self.good()
        header, payload, signature = token.split(".")
        forms = (
            *(f"{token}=", f"{token}==", f"{token} ", f" {token}", f"{token}\n", f"{token}\0", f"{token}."),
            *(f"{header}.{payload}", f"{header}.{payload}.", f".{payload}.{signature}"),
            *(f"{header}..{signature}", f"{payload}.{header}.{signature}", token[::-1], token * 2),
            *(f"{token}.{signature}", header, "", "..", ".", f"Bearer {token}", token.upper()),
            token.swapcase(),
            f"{header}.{_packed([])}.{signature}",
            f"{_encoded(b'[' * 500)}.{payload}.{signature}",
            f"{_encoded(b'not JSON')}.{payload}.{signature}",
        )
        return self._random.choice(forms)

    def _character(self) -> str:
        token = self.good()
        at = self._random.randrange(len(token))
        other = self._random.choice([each for each in _ALPHABET + ".+/= \u00e9" if each != token[at]])
        return token[:at] + other + token[at + 1 :]


def _hmac(secret: bytes, alg: str) -> Callable[[bytes], bytes]:
    algorithm = HMACAlgorithm(HMACAlgorithm.SHA256 if alg == "HS256" else HMACAlgorithm.SHA512)
    return lambda data: algorithm.sign(data, secret)


def _packed(value: object) -> str:
    return _encoded(json.dumps(value, separators=(",", ":")).encode())


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
