"""`presence token`: keys and tokens made, and said why one is refused."""

import io
import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from presence.auth.key_file import load
from presence.auth.operator_tokens import load as load_tokens
from presence.cli.main import main

pytestmark = pytest.mark.usefixtures("clean_environment")


Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs the command; returns what it printed, or what it complained of."""

    def run(*words: object, status: int = 0) -> str:
        assert main(["token", *map(str, words)]) == status
        printed = capsys.readouterr()
        assert not printed.err or status
        return (printed.err if status else printed.out).strip()

    return run


def secrets_of(path: Path) -> list[str]:
    keys = json.loads(path.read_text())["keys"]
    return [entry[name] for entry in keys for name in ("k", "d") if name in entry]


@pytest.fixture
def keys(tmp_path: Path, say: Say) -> Path:
    path = tmp_path / "keys.json"
    assert say("keygen", "--append-to", path, "--kid", "first", "--alg", "HS256") == "first"
    return path


@pytest.mark.parametrize("alg", ["HS256", "RS256", "EdDSA"])
def test_what_is_made_is_good(tmp_path: Path, alg: str, say: Say) -> None:
    path = tmp_path / "keys.json"
    kid = say("keygen", "--append-to", path, "--alg", alg)
    token = tmp_path / "token"
    token.write_text(say("sign", "--keys", path, "--uid", "ann", "--ttl", "60") + "\n")
    line = say("verify", "--keys", path, f"@{token}")
    assert line.startswith(f"ann  key {kid} ({alg})  valid until ")
    said = json.loads(say("verify", "--keys", path, f"@{token}", "--json"))
    assert (said["uid"], said["kid"], said["alg"]) == ("ann", kid, alg)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_for_their_owner_alone_and_keys_are_added(keys: Path, tmp_path: Path, say: Say) -> None:
    issuer, servers = tmp_path / "issuer.json", tmp_path / "servers.json"
    assert mode(keys) == 0o600
    keys.chmod(0o640)
    say("keygen", "--append-to", keys, "--kid", "second")
    assert ({*load(keys).kids}, mode(keys)) == ({"first", "second"}, 0o640)
    say("keygen", "--append-to", issuer, "--public", servers, "--kid", "a", "--alg", "RS256")
    assert (len(secrets_of(issuer)), secrets_of(servers), mode(servers)) == (1, [], 0o644)
    token = tmp_path / "token"
    token.write_text(say("sign", "--keys", issuer, "--uid", "ann"))
    assert say("verify", "--keys", servers, f"@{token}").startswith("ann ")
    assert "signs nothing" in say("sign", "--keys", servers, "--uid", "ann", status=1)
    say("keygen", "--append-to", servers, "--kid", "b")
    assert ({*load(servers).kids}, mode(servers)) == ({"a", "b"}, 0o640), "it has a secret now"
    names = " ".join(sorted(path.name for path in tmp_path.iterdir()))
    assert names == "issuer.json keys.json servers.json token"


def test_the_settings_may_name_the_file_and_the_audience(
    keys: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = keys.with_name("token")
    made = say("sign", "--keys", keys, "--uid", "ann", "--token-audience", "app")
    token.write_text(made)
    assert made not in say("verify", "--keys", keys, made, status=2), "no argument is repeated"
    assert "its audience (aud) is not presence" in say("verify", "--keys", keys, f"@{token}", status=1)
    monkeypatch.setenv("PRESENCE_TOKEN_KEYS", str(keys))
    monkeypatch.setenv("PRESENCE_TOKEN_AUDIENCE", "app")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(made.encode())))
    assert say("verify").startswith("ann ")


def test_the_last_key_signs_unless_another_is_named(keys: Path, say: Say) -> None:
    say("keygen", "--append-to", keys, "--kid", "second")
    token = keys.with_name("token")
    for words, kid in (([], "second"), (["--kid", "first"], "first")):
        token.write_text(say("sign", "--keys", keys, "--uid", "ann", *words))
        said = json.loads(say("verify", "--keys", keys, "--json", f"@{token}"))
        assert said["kid"] == kid
    third = say("sign", "--keys", keys, "--uid", "ann", "--kid", "third", status=1)
    assert "no key has the kid 'third'" in third


def test_why_a_token_is_refused_is_said(keys: Path, say: Say) -> None:
    token = keys.with_name("token")
    good = say("sign", "--keys", keys, "--uid", "ann")
    other = keys.with_name("other.json")
    say("keygen", "--append-to", other, "--kid", "first", "--alg", "HS256")
    for text, says in (
        ("nonsense", "is no JWT in compact form"),
        (good + "=", "is no JWT in compact form"),
        (say("sign", "--keys", other, "--uid", "ann"), "its signature is not"),
        (good.replace(good.split(".")[0], "eyJhbGciOiJub25lIiwia2lkIjoiZmlyc3QifQ"), "no key has"),
    ):
        token.write_text(text)
        complaint = say("verify", "--keys", keys, f"@{token}", status=1)
        assert says in complaint
        assert text not in complaint


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["sign", "--uid", "ann"], 2, "give --keys FILE"),
        (["verify"], 2, "give --keys FILE"),
        (["sign", "--keys", "/nowhere", "--uid", "ann"], 1, "/nowhere: cannot be read"),
        (["sign", "--keys", "/nowhere", "--uid", "a b"], 2, "is not a valid uid"),
        (["verify", "--keys", "/nowhere"], 1, "/nowhere: cannot be read"),
        (["keygen", "--kid", "k" * 65], 1, "kid must be"),
        (["keygen", "--append-to", "/nowhere/keys.json"], 1, "/nowhere"),
        (["keygen", "--alg", "HS256", "--public", "/nowhere"], 2, "has no public part"),
        (["sign", "--uid", "ann", "--ttl", "0"], 2, "not a time"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], status: int, says: str, say: Say) -> None:
    assert says in say(*words, status=status)


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (None, ("keygen", "--kid", "first"), "another key has this kid"),
        ("canary", ("keygen",), "is not valid JSON"),
        ("read canary short\n", ("admin", "--role", "act", "--name", "ann"), "line 1: SECRET must be"),
    ],
)
def test_a_file_that_no_server_would_take_is_left_alone(
    keys: Path, say: Say, text: str | None, words: tuple[str, ...], says: str
) -> None:
    secret = "canary" if text else secrets_of(keys)[0]
    if text:
        keys.write_text(text)
    before = keys.read_text()
    complaint = say(*words, "--append-to", keys, status=1)
    assert says in complaint
    assert keys.read_text() == before
    assert secret not in complaint


def test_operators_tokens_are_lines_that_servers_take(tmp_path: Path, say: Say) -> None:
    path = tmp_path / "tokens"
    assert say("admin", "--role", "read", "--name", "grafana", "--append-to", path) == "read grafana"
    assert mode(path) == 0o600
    path.write_text(f"# kept\n{path.read_text().rstrip()}")
    say("admin", "--role", "act", "--name", "ann", "--append-to", path)
    printed = say("admin", "--role", "read", "--name", "bob")
    path.write_text(f"{path.read_text()}{printed}\n")
    assert len(load_tokens(path)) == 3
    assert path.read_text().startswith("# kept\nread grafana ")
    token = load_tokens(path).find(printed.split()[2])
    assert token is not None
    assert (token.role, token.name) == ("read", "bob")
    for name in ("", "two words", "-dash", "x" * 65, "line\nbreak", "ä"):
        assert "token admin: " in say("admin", "--role", "read", f"--name={name}", status=2)
