"""Tokens: JSON Web Tokens (RFC 7519) in compact form, signed by one of our keys.

Required beside the signature: `kid` and `alg` in the header, which name a key; `sub`, a uid by the rules of
the wire; `exp`; `aud`, an audience or a list that contains one; `iss`, if an issuer is configured. `nbf` is
checked if given, and where they count `see`, whom the user may see, and `rooms`, the rooms that a session is
in, may join and may watch. `roster` lists users whom the user's clients watch. Other claims are ignored, also
`iat`, by which RFC 7519 refuses nothing: an issuer's clock may be a second ahead. Tokens with extensions that
must be understood (`crit`) are refused.

A pass is such a token for another audience, longer, and only tells whom its user may see.

PyJWT checks the signature; the claims are checked here, because PyJWT would use the machine's clock by
itself.
"""

import base64
import json
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from presence.auth.signing_keys import Key, Keyring, SignatureRefused
from presence.core.authenticator import NO_PATTERNS, NO_ROOM_CLAIM, NamePatterns, RoomClaim
from presence.protocol.constants import ROOMS_MAX, TOKEN_MAX_BYTES, UIDS_MAX
from presence.protocol.schema import room_complaint, uid_complaint

# A part in base64url: no padding, and no bits behind the last byte. So no two texts have the same bytes.
_PART: Final = r"(?:[\w-]{4})*+(?:[\w-][AQgw]|[\w-]{2}[AEIMQUYcgkosw048])?"
_COMPACT: Final = re.compile(rf"{_PART}\.{_PART}\.{_PART}", re.ASCII)
# The end of the year 9999: a larger value is milliseconds by mistake, and such a token would never expire.
LATEST_S: Final = 253_402_300_799


class Reason(StrEnum):
    """Why a token is refused: for operators only, clients get no reason."""

    MISSING = "missing"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    SIGNATURE = "signature"
    EXPIRED = "expired"
    NOT_YET = "not_yet"
    ISSUER = "issuer"
    AUDIENCE = "audience"
    CLAIMS = "claims"
    OTHER_UID = "other_uid"


class TokenRefused(Exception):
    """A token is invalid.

    Attributes:
        reason: why, for counters.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class TokenRules(NamedTuple):
    """What every token must satisfy."""

    audiences: tuple[str, ...]  # one of which it must name
    leeway_s: float = 0.0  # allowed difference between the issuer's clock and ours
    issuer: str | None = None  # that it must name; None: any
    reads_sight: bool = False  # whether `see` counts
    reads_rooms: bool = False  # whether `rooms` counts

    @property
    def of_passes(self) -> "TokenRules":
        """What every pass must satisfy: other audiences, so that no pass is a token and no token a pass."""
        audiences = tuple(map(pass_audience, self.audiences))
        return self._replace(audiences=audiences, reads_sight=True, reads_rooms=False)


def pass_audience(audience: str) -> str:
    """Return the audience of passes, from that of tokens."""
    return f"{audience}:pass"


class Claims(NamedTuple):
    """The claims of a valid token."""

    uid: str
    expires: float  # Unix seconds, with the leeway added
    sight: NamePatterns = NO_PATTERNS  # whom the user may see, where it counts
    roster: str = ""  # uids with a space between two
    rooms: RoomClaim = NO_ROOM_CLAIM  # where it counts


class UncheckedToken(NamedTuple):
    """A token that is not checked yet, and the key that it names."""

    text: str
    key: Key


def parse(text: object, keyring: Keyring, max_bytes: int = TOKEN_MAX_BYTES) -> UncheckedToken:
    """Parse a token, or a pass, as far as needed to find its key.

    Raises:
        TokenRefused: it is no token, or its key is unknown.
    """
    if text is None:
        raise TokenRefused(Reason.MISSING, "there is no token")
    if not isinstance(text, str) or len(text) > max_bytes or not _COMPACT.fullmatch(text):
        raise TokenRefused(Reason.MALFORMED, f"is no JWT in compact form of at most {max_bytes} bytes")
    header = _object(text[: text.index(".")])
    kid, alg = header.get("kid"), header.get("alg")
    if not isinstance(kid, str) or not isinstance(alg, str):
        raise TokenRefused(Reason.MALFORMED, "its header names no key (kid) or no algorithm (alg)")
    if "crit" in header or "b64" in header:
        raise TokenRefused(Reason.MALFORMED, "its header asks for an extension (crit)")
    if (key := keyring.find(kid, alg)) is None:
        raise TokenRefused(Reason.UNKNOWN_KEY, "no key has the kid and alg of its header")
    return UncheckedToken(text, key)


def claimed_issue(text: str) -> float | None:
    """Return the `iat` of a token that `parse` refused for its key, in Unix seconds; None without one.

    The value is not verified.
    """
    try:
        return _moment(_object(text.split(".")[1]), "iat")
    except TokenRefused:
        return None


def check(token: UncheckedToken, rules: TokenRules, wall: float) -> Claims:
    """Return the claims of a valid token; `wall`: Unix seconds.

    Raises:
        TokenRefused: it is invalid.
    """
    try:
        payload = token.key.verify(token.text)
    except SignatureRefused:
        raise TokenRefused(Reason.SIGNATURE, "its signature is not that of the key that it names") from None
    return _claims(_parsed(payload), rules, wall)


def _claims(claims: dict[str, Any], rules: TokenRules, wall: float) -> Claims:
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused(Reason.ISSUER, f"its issuer (iss) is not {rules.issuer}")
    audience = claims.get("aud")
    if not any(each in rules.audiences for each in (audience if isinstance(audience, list) else [audience])):
        raise TokenRefused(Reason.AUDIENCE, f"its audience (aud) is not {' or '.join(rules.audiences)}")
    uid: Any = claims.get("sub")
    if not is_uid(uid):
        raise TokenRefused(Reason.CLAIMS, "its subject (sub) is no uid")
    if rules.reads_sight and not is_seeing_uid(uid):
        raise TokenRefused(Reason.CLAIMS, "its subject (sub) ends with *, as beginnings of uids do in see")
    expires = _moment(claims, "exp") + rules.leeway_s
    if expires <= wall:
        raise TokenRefused(Reason.EXPIRED, f"it has expired (exp) {wall - expires:.0f} s ago")
    if "nbf" in claims and _moment(claims, "nbf") - rules.leeway_s > wall:
        raise TokenRefused(Reason.NOT_YET, "it is of the future (nbf)")
    sight = _sight(claims.get("see", [])) if rules.reads_sight else NO_PATTERNS
    rooms = _rooms(claims.get("rooms")) if rules.reads_rooms else NO_ROOM_CLAIM
    return Claims(uid, expires, sight, _roster(claims.get("roster")), rooms)


def _sight(value: object) -> NamePatterns:
    """Return whom a token lets its user see: a list of uids, and of beginnings of uids with a ``*``."""
    if not isinstance(value, list) or not is_sight(value):
        raise TokenRefused(Reason.CLAIMS, "its see is no list of uids, and of beginnings of uids with a *")
    return _names_and_prefixes(value)


def _names_and_prefixes(value: list[str]) -> NamePatterns:
    prefixes = {each.removesuffix("*") for each in value if each.endswith("*")}
    return NamePatterns(frozenset(each for each in value if not each.endswith("*")), tuple(sorted(prefixes)))


def _roster(value: object) -> str:
    """Return the users in a claim `roster`; none for anything else, which earlier releases have ignored."""
    is_list = isinstance(value, list) and len(value) <= UIDS_MAX and all(map(is_uid, value))
    return " ".join(value) if is_list and isinstance(value, list) else ""


def _rooms(value: object) -> RoomClaim:
    """Return what a claim `rooms` says; anything else than such a claim gives no right."""
    if value is None:
        return NO_ROOM_CLAIM
    if not isinstance(value, dict) or not is_room_claim(value):
        return RoomClaim(members=False)
    inside = " ".join(sorted({*value.get("in", ())}))
    join, watch = (_names_and_prefixes(value.get(key, [])) for key in ("join", "watch"))
    return RoomClaim(inside, join, watch, value.get("members"))


def is_room_claim(value: dict[str, Any]) -> bool:
    """Whether `in` is a list of rooms, `join` and `watch` are such, also of beginnings of names with a ``*``,
    and `members` is a boolean."""
    inside, join, watch = (value.get(key, []) for key in ("in", "join", "watch"))
    if not (isinstance(inside, list) and isinstance(join, list) and isinstance(watch, list)):
        return False
    are_rooms = all(map(is_room, inside)) and all(each == "*" or is_room(each) for each in join + watch)
    return are_rooms and len(inside) <= ROOMS_MAX and isinstance(value.get("members", False), bool)


def is_room(value: object) -> bool:
    return room_complaint(value) is None


def is_sight(see: Iterable[object]) -> bool:
    """Whether each part can be a uid, or the beginning of one with a ``*`` after it."""
    return all(each == "*" or is_uid(each) for each in see)


def _moment(claims: dict[str, Any], name: str) -> float:
    value: Any = claims.get(name)
    if type(value) not in (int, float) or not 0 <= value <= LATEST_S:
        raise TokenRefused(Reason.CLAIMS, f"its {name} is missing, or no Unix time in seconds")
    return float(value)


def is_uid(value: object) -> bool:
    return uid_complaint(value) is None


def is_seeing_uid(value: object) -> bool:
    """Whether a value can be a uid where `see` counts, and ``*`` at the end is for beginnings of uids."""
    return is_uid(value) and not str(value).endswith("*")


def _object(segment: str) -> dict[str, Any]:
    return _parsed(base64.urlsafe_b64decode(segment + "=="))


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise TokenRefused(Reason.MALFORMED, "a part of it is no JSON object")
    return parsed
