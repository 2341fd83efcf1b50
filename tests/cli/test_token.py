"""`presence token`: making keys and tokens, and printing why a token is refused."""

import base64
import errno
import io
import json
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from presence.auth import key_file, tokens
from presence.auth.key_file import load
from presence.auth.operator_tokens import load as load_tokens
from presence.auth.token_signer import Signer
from presence.auth.tokens import TokenRules
from presence.cli.main import main
from presence.core.authenticator import NamePatterns, RoomClaim

pytestmark = pytest.mark.usefixtures("clean_environment")


RunToken = Callable[..., str]


@pytest.fixture
def run_token(capsys: pytest.CaptureFixture[str]) -> RunToken:
    """Runs the command; returns its output, or its error message."""

    def run(*words: object, status: int = 0) -> str:
        assert main(["token", *map(str, words)]) == status
        printed = capsys.readouterr()
        assert status or bool(printed.err) == ("--append-to" in words)
        return (printed.err if status else printed.out).strip()

    return run


def secrets_of(path: Path) -> list[str]:
    keys = json.loads(path.read_text())["keys"]
    return [entry[name] for entry in keys for name in ("k", "d") if name in entry]


@pytest.fixture
def keys(tmp_path: Path, run_token: RunToken) -> Path:
    path = tmp_path / "keys.json"
    assert run_token("keygen", "--append-to", path, "--kid", "first", "--alg", "HS256") == "first"
    return path


@pytest.mark.parametrize("alg", ["HS256", "RS256", "ES256", "EdDSA"])
def test_generated_keys_and_tokens_are_valid(tmp_path: Path, alg: str, run_token: RunToken) -> None:
    path = tmp_path / "keys.json"
    kid = run_token("keygen", "--append-to", path, "--alg", alg)
    token = tmp_path / "token"
    token.write_text(run_token("sign", "--keys", path, "--uid", "ann", "--ttl", "60") + "\n")
    line = run_token("verify", "--keys", path, f"@{token}")
    assert line.startswith(f"ann  key {kid} ({alg})  valid until ")
    claims = json.loads(run_token("verify", "--keys", path, f"@{token}", "--json"))
    assert (claims["uid"], claims["kid"], claims["alg"]) == ("ann", kid, alg)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_readable_by_their_owner_only_and_keys_are_appended(
    keys: Path, tmp_path: Path, run_token: RunToken
) -> None:
    issuer, servers = tmp_path / "issuer.json", tmp_path / "servers.json"
    assert mode(keys) == 0o600
    keys.chmod(0o640)
    run_token("keygen", "--append-to", keys, "--kid", "second")
    assert ({*load(keys).kids}, mode(keys)) == ({"first", "second"}, 0o640)
    run_token("keygen", "--append-to", issuer, "--public", servers, "--kid", "a", "--alg", "RS256")
    assert (len(secrets_of(issuer)), secrets_of(servers), mode(servers)) == (1, [], 0o644)
    token = tmp_path / "token"
    token.write_text(run_token("sign", "--keys", issuer, "--uid", "ann"))
    assert run_token("verify", "--keys", servers, f"@{token}").startswith("ann ")
    assert "signs nothing" in run_token("sign", "--keys", servers, "--uid", "ann", status=1)
    run_token("keygen", "--append-to", servers, "--kid", "b")
    assert ({*load(servers).kids}, mode(servers)) == ({"a", "b"}, 0o640), "it has a secret now"
    names = " ".join(sorted(path.name for path in tmp_path.iterdir()))
    assert names == "issuer.json keys.json servers.json token"


def test_the_settings_may_name_the_key_file_and_the_audience(
    keys: Path, run_token: RunToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = keys.with_name("token")
    made = run_token(
        "sign", "--keys", keys, "--uid", "ann", "--token-audience", "app,web", "--token-issuer", "us"
    )
    token.write_text(made)
    assert made not in run_token("verify", "--keys", keys, made, status=2), "the argument is not repeated"
    assert "its audience (aud) is not presence" in run_token("verify", "--keys", keys, f"@{token}", status=1)
    monkeypatch.setenv("PRESENCE_TOKEN_KEYS", str(keys))
    wrong = run_token("verify", "--keys", keys, f"@{token}", "--token-issuer", "them", status=1)
    assert "its issuer (iss) is not them" in wrong
    monkeypatch.setenv("PRESENCE_TOKEN_ISSUER", "us")
    monkeypatch.setenv("PRESENCE_TOKEN_AUDIENCE", "other,app")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(made.encode())))
    assert run_token("verify").startswith("ann ")


def test_the_last_key_signs_unless_another_is_named(keys: Path, run_token: RunToken) -> None:
    run_token("keygen", "--append-to", keys, "--kid", "second")
    token = keys.with_name("token")
    for words, kid in (([], "second"), (["--kid", "first"], "first")):
        token.write_text(run_token("sign", "--keys", keys, "--uid", "ann", *words))
        claims = json.loads(run_token("verify", "--keys", keys, "--json", f"@{token}"))
        assert claims["kid"] == kid
    third = run_token("sign", "--keys", keys, "--uid", "ann", "--kid", "third", status=1)
    assert "no key has the kid 'third'" in third


def test_the_reason_of_a_refusal_is_printed(keys: Path, run_token: RunToken) -> None:
    token = keys.with_name("token")
    good = run_token("sign", "--keys", keys, "--uid", "ann")
    other = keys.with_name("other.json")
    run_token("keygen", "--append-to", other, "--kid", "first", "--alg", "HS256")
    for text, message in (
        ("nonsense", "is no JWT in compact form"),
        (good + "=", "is no JWT in compact form"),
        (run_token("sign", "--keys", other, "--uid", "ann"), "its signature is not"),
        (good.replace(good.split(".")[0], "eyJhbGciOiJub25lIiwia2lkIjoiZmlyc3QifQ"), "no key has"),
    ):
        token.write_text(text)
        complaint = run_token("verify", "--keys", keys, f"@{token}", status=1)
        assert message in complaint
        assert text not in complaint


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["sign", "--uid", "ann"], 2, "give --keys FILE"),
        (["verify"], 2, "give --keys FILE"),
        (["sign", "--keys", "/nowhere", "--uid", "ann"], 1, "/nowhere: cannot be read"),
        (["sign", "--keys", "/nowhere", "--uid", "a b"], 2, "is not a valid uid"),
        (["verify", "--keys", "/nowhere"], 1, "/nowhere: cannot be read"),
        (["keygen", "--kid", "k" * 65], 1, "kid must be"),
        (["keygen", "--append-to", "/nowhere/keys.json"], 1, "there is no directory /nowhere"),
        (["keygen", "--append-to", "a.json", "--public", "./a.json"], 2, "must name another file"),
        (
            ["admin", "--role", "act", "--name", "ann", "--append-to", "/nowhere/a"],
            1,
            "/nowhere/a: cannot be written",
        ),
        (["keygen", "--alg", "HS256", "--public", "/nowhere"], 2, "has no public part"),
        (["sign", "--uid", "ann", "--ttl", "0"], 2, "not a time"),
    ],
)
def test_impossible_requests_are_errors(
    words: list[str], status: int, message: str, run_token: RunToken
) -> None:
    assert message in run_token(*words, status=status)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (None, ("keygen", "--kid", "first"), "another key has this kid"),
        ("canary", ("keygen",), "is not valid JSON"),
        ("read canary short\n", ("admin", "--role", "act", "--name", "ann"), "line 1: SECRET must be"),
    ],
)
def test_a_file_that_servers_would_refuse_is_not_changed(
    keys: Path, run_token: RunToken, text: str | None, words: tuple[str, ...], message: str
) -> None:
    secret = "canary" if text else secrets_of(keys)[0]
    if text:
        keys.write_text(text)
    before = keys.read_text()
    complaint = run_token(*words, "--append-to", keys, status=1)
    assert message in complaint
    assert keys.read_text() == before
    assert secret not in complaint


@pytest.mark.parametrize("problem", ["there is no directory", "Permission denied"])
@pytest.mark.parametrize("unwritable", ["issuer.json", "servers.json"])
def test_no_file_gets_a_new_key_if_the_other_cannot_be_written(
    tmp_path: Path, run_token: RunToken, unwritable: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: tmp_path / name / name for name in ("issuer.json", "servers.json")}
    for name, path in files.items():
        if name != unwritable or problem == "Permission denied":
            path.parent.mkdir()
    if problem == "Permission denied":  # which root would not get
        real = os.open

        def denied(path: Path, flags: int, mode: int = 0o777) -> int:
            if Path(path).parent == files[unwritable].parent:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return real(path, flags, mode)

        monkeypatch.setattr(os, "open", denied)
    words = ("keygen", "--append-to", files["issuer.json"], "--public", files["servers.json"])
    assert f"{files[unwritable]}: cannot be written: {problem}" in run_token(*words, status=1)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("claims", [{"see": "bob"}, {"see": None}, {"sub": "ann*"}], ids=str)
def test_verify_refuses_what_servers_with_visibility_refuse(
    keys: Path, run_token: RunToken, claims: dict[str, Any]
) -> None:
    signer = Signer(json.loads(keys.read_text())["keys"][0])
    token = keys.with_name("token")
    token.write_text(signer.token("ann", audience="presence", now=time.time(), ttl_s=60, **claims))
    assert run_token("verify", "--keys", keys, f"@{token}").startswith(str(claims.get("sub", "ann")))
    complaint = run_token("verify", "--keys", keys, f"@{token}", "--visibility", "claims", status=1)
    assert "refused: its s" in complaint


def claims_of(text: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))
    return claims


def test_a_token_names_the_rooms_that_it_was_asked_for(keys: Path, run_token: RunToken) -> None:
    sign = ("sign", "--keys", keys, "--uid", "ann")
    rooms = (
        "--rooms-in",
        "lobby",
        "hall",
        "--rooms-join",
        "game:*",
        "--rooms-watch",
        "bar",
        "--rooms-members",
    )
    text = run_token(*sign, *rooms).strip()
    keyring = key_file.parse(keys.read_bytes(), keys)
    claims = tokens.check(
        tokens.parse(text, keyring), TokenRules(("presence",), reads_rooms=True), time.time()
    )
    assert claims.rooms == RoomClaim(
        "hall lobby", NamePatterns(prefixes=("game:",)), NamePatterns(frozenset({"bar"})), members=True
    )
    assert "members" not in claims_of(run_token(*sign, "--rooms-in", "lobby"))["rooms"]
    assert claims_of(run_token(*sign, "--no-rooms-members"))["rooms"] == {"members": False}
    assert "rooms" not in claims_of(run_token(*sign))
    for words, complaint in (
        (("--rooms-in", "a b"), "--rooms-in: 'a b' is not a valid name of a room: it holds"),
        (("--rooms-in", "lobby", "x" * 65), "it is longer than 64 bytes"),
        (("--rooms-join", ""), "--rooms-join: '' is not a valid name of a room: it must not be empty"),
        (("--rooms-watch", "a b*"), "--rooms-watch: 'a b*' is not a valid name"),
        (("--rooms-in", *map(str, range(17))), "--rooms-in takes at most 16 rooms"),
    ):
        assert complaint in run_token(*sign, *words, status=2)
    assert claims_of(run_token(*sign, "--rooms-join", "*"))["rooms"] == {"join": ["*"]}


def test_a_token_until_the_end_of_the_year_9999_is_verified(keys: Path, run_token: RunToken) -> None:
    signer = Signer(json.loads(keys.read_text())["keys"][0])
    token = keys.with_name("token")
    token.write_text(signer.token("ann", audience="presence", now=1, ttl_s=1, exp=253_402_300_799))
    line = run_token("verify", "--keys", keys, "--token-leeway", "60", f"@{token}")
    assert "valid until 9999-12-31 23:59:59+00:00" in line


def test_no_token_is_signed_that_servers_refuse(keys: Path, run_token: RunToken) -> None:
    sign = ("sign", "--keys", keys, "--uid")
    assert "ends before the year 10000" in run_token(*sign, "ann", "--ttl", "1e12", status=1)
    assert "sees none" in run_token(*sign, "ann*", "--see", "bob", status=2)
    assert "sees none" in run_token("pass", "--keys", keys, "--uid", "ann*", "--see", "bob", status=2)
    assert run_token(*sign, "ann*")  # is a uid where visibility does not count


def test_what_was_added_and_where_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    issuer, servers, operators = (str(tmp_path / name) for name in ("issuer", "servers", "operators"))
    assert main(["token", "keygen", "--kid", "a", "--append-to", issuer, "--public", servers]) == 0
    said = f"presence: key a added to {issuer}, its public part to {servers}\n"
    assert capsys.readouterr() == ("a\n", said)
    assert main(["token", "admin", "--role", "act", "--name", "me", "--append-to", operators]) == 0
    printed = capsys.readouterr()
    assert printed.out == "act me\n"
    assert f"token of me, role act, added to {operators}: " in printed.err
    assert Path(operators).read_text().split()[2] not in printed.err


def test_generated_operator_tokens_are_accepted_by_servers(tmp_path: Path, run_token: RunToken) -> None:
    path = tmp_path / "tokens"
    assert run_token("admin", "--role", "read", "--name", "grafana", "--append-to", path) == "read grafana"
    assert mode(path) == 0o600
    path.write_text(f"# kept\n{path.read_text().rstrip()}")
    run_token("admin", "--role", "act", "--name", "ann", "--append-to", path)
    printed = run_token("admin", "--role", "read", "--name", "bob")
    path.write_text(f"{path.read_text()}{printed}\n")
    assert len(load_tokens(path)) == 3
    assert path.read_text().startswith("# kept\nread grafana ")
    token = load_tokens(path).find(printed.split()[2])
    assert token is not None
    assert (token.role, token.name) == ("read", "bob")
    for name in ("", "two words", "-dash", "x" * 65, "line\nbreak", "ä"):
        assert "token admin: " in run_token("admin", "--role", "read", f"--name={name}", status=2)
