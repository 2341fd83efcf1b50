"""Tokens: required claims and header fields, and the reasons of refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.utils import base64url_encode

from presence.auth import tokens
from presence.auth.token_signer import CannotSign, key_set
from presence.auth.tokens import Reason, TokenRefused, TokenRules
from presence.common.clock import Clock
from presence.config.settings import Settings
from presence.core.authenticator import NO_ROOM_CLAIM, Granted, NamePatterns, RoomClaim
from presence.protocol.constants import TOKEN_MAX_BYTES, UIDS_MAX
from presence.server import credentials
from tests.auth.gates import ALGORITHMS, AUDIENCE, BEGUN, WALL, entry, every_key, keyring, signer, token

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
YEAR_10000 = 253_402_300_800


def reason(
    text: object, *, wall: float = WALL, leeway_s: float = 0.0, rules: TokenRules | None = None
) -> Reason | None:
    """Return why a token is refused; None: it is accepted."""
    try:
        tokens.check(tokens.parse(text, every_key()), rules or TokenRules((AUDIENCE,), leeway_s), wall)
    except TokenRefused as error:
        return error.reason
    return None


def with_header(**header: Any) -> str:
    """Return a valid token with other headers, correctly signed."""
    return _signed(f"{_packed(header)}.{token().split('.')[1]}")


def with_payload(claims: object) -> str:
    """Return a token with these claims only, correctly signed."""
    return _signed(f"{token().split('.')[0]}.{_packed(claims)}")


def _signed(signing: str) -> str:
    return f"{signing}.{base64url_encode(signer('HS256').sign(signing.encode())).decode()}"


def _packed(value: object) -> str:
    return base64url_encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_valid_token_names_its_user_and_expiry(alg: str) -> None:
    claims = tokens.check(tokens.parse(token("ann", alg, 60), every_key()), TokenRules((AUDIENCE,)), WALL)
    assert claims == tokens.Claims("ann", WALL + 60)


NAMES_US: tuple[object, ...] = ["other", "presence"], ["presence", 7]
NAMES_OTHERS: tuple[object, ...] = "other", None, [], [["presence"]], {"presence": 1}, "presence "
NO_UIDS = None, 7, "", "a b", "{a}", "a" * 129, "\ud800"
NO_MOMENTS = (
    *(None, True, str(WALL + 60), float("nan"), float("inf"), 10**300),
    *((WALL + 60) * 1000, YEAR_10000),
)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        *(({"aud": each}, Reason.AUDIENCE) for each in NAMES_OTHERS),
        *(({"aud": each}, None) for each in NAMES_US),
        *(({"sub": each}, Reason.CLAIMS) for each in NO_UIDS),
        ({"sub": "a" * 128}, None),
        *(({"exp": each}, Reason.CLAIMS) for each in NO_MOMENTS),
        *(({"exp": each}, None) for each in (YEAR_10000 - 1, WALL + 0.5)),
        *(({"exp": each}, Reason.EXPIRED) for each in (WALL, 0)),
        ({"nbf": WALL}, None),
        ({"nbf": WALL + 1}, Reason.NOT_YET),
        ({"nbf": None}, Reason.CLAIMS),
        ({"iat": WALL + 10**6}, None),
        ({"iat": "now"}, None),
        ({"iss": "x", "jti": {}, "role": "admin"}, None),
    ],
)
def test_claims(claims: dict[str, Any], why: Reason | None) -> None:
    assert reason(token(**claims)) == why


@pytest.mark.parametrize("missing", ["aud", "sub", "exp"])
def test_a_missing_required_claim_is_refused(missing: str) -> None:
    claims = {"aud": AUDIENCE, "sub": "ann", "exp": WALL + 60}
    del claims[missing]
    assert reason(with_payload(claims)) == (Reason.AUDIENCE if missing == "aud" else Reason.CLAIMS)


ISSUER = "https://login.example.com/"


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        *(({"iss": each}, Reason.ISSUER) for each in (ISSUER[:-1], ISSUER.upper(), "")),
        *(({"iss": ISSUER, "aud": each}, None) for each in ("web", "phone", ["other", "phone"])),
        *(
            ({"iss": ISSUER, "aud": each}, Reason.AUDIENCE)
            for each in ("presence", "web,phone", "e", ["other"], [["web"]])
        ),
        ({"aud": "web"}, Reason.ISSUER),
    ],
)
def test_the_issuer_and_one_of_several_audiences_are_required(
    claims: dict[str, Any], why: Reason | None
) -> None:
    rules = TokenRules(("web", "phone"), issuer=ISSUER)
    assert reason(token(**claims), rules=rules) == why


def test_the_leeway_applies_to_both_ends() -> None:
    assert reason(token(exp=WALL - 4), leeway_s=5) is None
    assert reason(token(exp=WALL - 5), leeway_s=5) is Reason.EXPIRED
    assert reason(token(nbf=WALL + 5), leeway_s=5) is None
    assert reason(token(nbf=WALL + 6), leeway_s=5) is Reason.NOT_YET
    parsed = tokens.parse(token(exp=WALL - 4), every_key())
    assert tokens.check(parsed, TokenRules((AUDIENCE,), 5), WALL).expires == WALL + 1


OURS = {"alg": "HS256", "kid": "key-HS256"}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (OURS, None),
        ({**OURS, "typ": "at+jwt", "x": 1}, None),
        *(({name: OURS[name]}, Reason.MALFORMED) for name in OURS),
        *(({**OURS, **odd}, Reason.MALFORMED) for odd in ({"kid": 7}, {"alg": ["HS256"]}, {"b64": True})),
        *(({**OURS, "crit": each}, Reason.MALFORMED) for each in (["exp"], None)),
        *(({**OURS, "alg": each}, Reason.UNKNOWN_KEY) for each in ("none", "HS512", "hs256", "RS256")),
        *(({**OURS, "kid": each}, Reason.UNKNOWN_KEY) for each in ("key-RS256", "nobody")),
    ],
)
def test_headers(header: dict[str, Any], why: Reason | None) -> None:
    assert reason(with_header(**header)) == why


@pytest.mark.parametrize("alg", ALGORITHMS)
def test_a_signature_by_another_key_of_the_same_name_is_refused(alg: str) -> None:
    theirs = tokens.parse(token(alg=alg), keyring({**entry(alg, "another"), "kid": f"key-{alg}"}))
    with pytest.raises(TokenRefused) as caught:
        tokens.check(theirs, TokenRules((AUDIENCE,)), WALL)
    assert caught.value.reason is Reason.SIGNATURE


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
def test_a_public_key_is_not_accepted_as_a_secret(alg: str) -> None:
    public = entry(alg)[{"RS256": "n", "ES256": "x", "EdDSA": "x"}[alg]]
    forged = keyring({"kty": "oct", "kid": f"key-{alg}", "alg": "HS256", "k": public})
    key = forged.find(f"key-{alg}", "HS256")
    assert key is not None
    signing = f"{_packed({'alg': 'HS256', 'kid': f'key-{alg}'})}.{token().split('.')[1]}"
    signature = key._jwk.Algorithm.sign(signing.encode(), key._jwk.key)
    text = f"{signing}.{base64url_encode(signature).decode()}"
    assert key.verify(text), "as an HMAC secret it would verify"
    assert reason(text) is Reason.UNKNOWN_KEY


@pytest.mark.parametrize(
    "form",
    [
        *("{0}=", "{0}==", "{0} ", " {0}", "{0}\n", "{0}.", "{0}.{0}", "{1}.{2}", "{1}.{2}.", ".{2}.{3}"),
        *("{1}..{3}", "", ".", "..", "Bearer {0}", "{1}.{2}.{3}\u00e9", "{1}+.{2}.{3}", "{1}.{2}/.{3}"),
    ],
)
def test_other_forms_are_no_tokens(form: str) -> None:
    text = token()
    assert reason(text) is None
    assert reason(form.format(text, *text.split("."))) in {Reason.MALFORMED, Reason.SIGNATURE}


@pytest.mark.parametrize("text", [b"bytes", 7, [], {}, True, None])
def test_values_other_than_text_are_no_tokens(text: object) -> None:
    assert reason(text) is (Reason.MISSING if text is None else Reason.MALFORMED)


def test_a_token_beyond_the_protocols_limit_is_refused() -> None:
    claims = {"sub": "ann", "aud": AUDIENCE, "exp": WALL + 60}
    room = TOKEN_MAX_BYTES - len(with_payload({**claims, "x": ""}))
    filled = with_payload({**claims, "x": "x" * (room * 3 // 4)})
    assert TOKEN_MAX_BYTES - 4 < len(filled) <= TOKEN_MAX_BYTES
    assert reason(filled) is None
    assert reason(with_payload({**claims, "x": "x" * room})) is Reason.MALFORMED


@pytest.mark.parametrize("payload", [[], "text", 7, None, True])
def test_a_part_that_is_no_object_is_malformed(payload: object) -> None:
    assert reason(with_payload(payload)) is Reason.MALFORMED
    deep = base64url_encode(b"[" * 400).decode()
    assert reason(f"{deep}.{deep}.") is Reason.MALFORMED


def test_each_character_matters() -> None:
    """No other text is accepted as the same token, not even with other bits after the last byte."""
    text = token()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    taken = [
        (at, other)
        for at in range(len(text))
        for other in alphabet
        if other != text[at] and reason(text[:at] + other + text[at + 1 :]) is None
    ]
    assert taken == []


@settings(deadline=None)
@given(st.text(max_size=800) | st.from_regex(r"[\w-]{0,99}\.[\w-]{0,99}\.[\w-]{0,99}", fullmatch=True))
def test_any_text_is_refused_without_an_error(text: str) -> None:
    assert reason(text) is not None


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["aud", "sub", "exp", "nbf", "iat"]), _JSON))
def test_any_signed_claims_are_judged_without_an_error(claims: dict[str, Any]) -> None:
    text = with_payload({"sub": "ann", "aud": AUDIENCE, "exp": WALL + 60, **claims})
    assert len(text) > TOKEN_MAX_BYTES or reason(text) not in {Reason.SIGNATURE, Reason.MALFORMED}


# Whom the user may see

SEEING = TokenRules((AUDIENCE,), reads_sight=True)


def with_sight(see: object) -> str:
    return with_payload({"sub": "ann", "aud": AUDIENCE, "exp": WALL + 60, "see": see})


@pytest.mark.parametrize(
    ("see", "sight"),
    [
        ([], NamePatterns()),
        (["bob", "team-*", "eve"], NamePatterns(frozenset({"bob", "eve"}), ("team-",))),
        (["*"], NamePatterns(prefixes=("",))),
    ],
)
def test_the_claim_see_names_uids_and_prefixes(see: list[str], sight: NamePatterns) -> None:
    parsed = tokens.parse(with_sight(see), every_key())
    assert tokens.check(parsed, SEEING, WALL).sight == sight
    assert tokens.check(parsed, TokenRules((AUDIENCE,)), WALL).sight == NamePatterns()


@pytest.mark.parametrize("see", ["bob", None, {}, [7], [""], ["a b"], [["bob"]], ["a{*"], ["x" * 200]])
def test_a_malformed_see_refuses_the_token_where_it_counts(see: object) -> None:
    assert reason(with_sight(see), rules=SEEING) is Reason.CLAIMS
    assert reason(with_sight(see)) is None


@pytest.mark.parametrize("uid", ["*", "ann*"])
def test_a_user_whose_name_would_show_others_cannot_log_in_where_it_counts(uid: str) -> None:
    text = with_payload({"sub": uid, "aud": AUDIENCE, "exp": WALL + 60})
    assert reason(text, rules=SEEING) is Reason.CLAIMS
    assert reason(text) is None


def test_no_pass_is_a_token_and_no_token_a_pass() -> None:
    key = signer("HS256")
    text = key.visibility_pass("ann", ["bob"], audience=AUDIENCE, now=WALL, ttl_s=60)
    assert reason(text, rules=SEEING) is Reason.AUDIENCE
    assert reason(text, rules=SEEING.of_passes) is None
    assert reason(with_sight(["bob"]), rules=SEEING.of_passes) is Reason.AUDIENCE
    with pytest.raises(CannotSign, match="4096"):
        key.visibility_pass(
            "ann", [f"user-{n:020}" for n in range(200)], audience=AUDIENCE, now=WALL, ttl_s=60
        )


# The users whom the user's clients watch


ODD_ROSTERS: list[object] = ["bob", None, 7, {}, [7], [""], ["a b"], ["bob", ["eve"]], ["x" * 200]]


@pytest.mark.parametrize(
    ("roster", "expected"),
    [
        (["bob", "eve"], "bob eve"),
        ([], ""),
        *((each, "") for each in ODD_ROSTERS),
        (["bob"] * (UIDS_MAX + 1), ""),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_claim_roster_lists_uids_and_anything_else_is_ignored(roster: object, expected: str) -> None:
    text = with_payload({"sub": "ann", "aud": AUDIENCE, "exp": WALL + 60, "roster": roster})
    parsed = tokens.parse(text, every_key(), max_bytes=10_000)
    assert tokens.check(parsed, TokenRules((AUDIENCE,)), WALL).roster == expected


# The rooms that a session is in, and may join


WITH_ROOMS = TokenRules((AUDIENCE,), reads_rooms=True)
ODD_ROOMS: list[object] = ["lobby", None, [7], [""], ["a b"], ["x" * 65], [["lobby"]], ["lobby"] * 17]
ODD_JOINS: list[object] = ["*", {}, [None], ["a b*"], ["hall", ["*"]]]
ODD_MEMBERS: list[object] = ["yes", 1, None, []]
ODD_ROOM_CLAIMS: list[object] = [
    *("lobby", 7, ["lobby"]),
    *({"in": each, "members": True} for each in ODD_ROOMS),
    *({"in": ["lobby"], key: each} for each in ODD_JOINS for key in ("join", "watch")),
    *({"in": ["lobby"], "members": each} for each in ODD_MEMBERS),
]


def claimed_rooms(claim: object, rules: TokenRules = WITH_ROOMS) -> RoomClaim:
    text = with_payload({"sub": "ann", "aud": rules.audiences[0], "exp": WALL + 60, "rooms": claim})
    return tokens.check(tokens.parse(text, every_key(), max_bytes=10_000), rules, WALL).rooms


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        ({"in": ["lobby", "hall", "lobby"]}, RoomClaim("hall lobby")),
        (
            {"join": ["hall", "game:*", "game*"]},
            RoomClaim(join=NamePatterns(frozenset({"hall"}), ("game", "game:"))),
        ),
        ({"join": ["*"], "other": 7}, RoomClaim(join=NamePatterns(prefixes=("",)))),
        ({"watch": ["hall", "game:*"]}, RoomClaim(watch=NamePatterns(frozenset({"hall"}), ("game:",)))),
        ({"members": True}, RoomClaim(members=True)),
        ({"members": False}, RoomClaim(members=False)),
        ({"in": ["a*"]}, RoomClaim("a*")),
        ({"in": [], "join": [], "watch": []}, NO_ROOM_CLAIM),
        ({}, NO_ROOM_CLAIM),
        (None, NO_ROOM_CLAIM),
        *((each, RoomClaim(members=False)) for each in ODD_ROOM_CLAIMS),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_claim_rooms_names_rooms_and_anything_else_gives_no_right(
    claim: object, found: RoomClaim
) -> None:
    assert claimed_rooms(claim) == found


def test_rooms_are_read_only_where_the_server_has_rooms_and_never_from_a_pass() -> None:
    claim = {"in": ["lobby"]}
    assert claimed_rooms(claim).inside == "lobby"
    assert claimed_rooms(claim, TokenRules((AUDIENCE,))) is NO_ROOM_CLAIM
    assert claimed_rooms(claim, WITH_ROOMS.of_passes) is NO_ROOM_CLAIM


@pytest.mark.parametrize("setting", ["off", "claimed", "open"])
def test_a_server_reads_the_claim_rooms_unless_it_has_none(tmp_path: Path, setting: str) -> None:
    (keys := tmp_path / "keys.json").write_text(key_set([entry("HS256")]))
    keys.chmod(0o600)
    clock = Clock(lambda: BEGUN, lambda: WALL)
    settings = Settings(token_keys=str(keys), rooms=setting)
    authenticator = credentials.load_authenticator(settings, clock, lambda: WALL)
    assert authenticator is not None
    granted = authenticator.login(token("ann", rooms={"in": ["lobby"]}), None, "", BEGUN)
    assert isinstance(granted, Granted)
    assert granted.rooms.inside == ("" if setting == "off" else "lobby")
