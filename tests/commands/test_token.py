"""`presence token`: keys and tokens made, and said why one is refused."""

import io
import json
import stat
import sys
from pathlib import Path

import pytest

from presence.admin.token_file import load as load_tokens
from presence.auth.key_file import load
from presence.cli import main

pytestmark = pytest.mark.usefixtures("clean_environment")


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    """Run the command; return what it printed, or what it complained of."""
    assert main(["token", *words]) == status
    printed = capsys.readouterr()
    assert not printed.err or status
    return (printed.err if status else printed.out).strip()


def secrets_of(path: Path) -> list[str]:
    return [
        entry[name] for entry in json.loads(path.read_text())["keys"] for name in ("k", "d") if name in entry
    ]


@pytest.fixture
def keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "keys.json"
    assert run(capsys, "key", "--into", str(path), "--kid", "first", "--alg", "HS256") == "first"
    return path


@pytest.mark.parametrize("alg", ["HS256", "RS256", "EdDSA"])
def test_what_is_made_is_good(tmp_path: Path, alg: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    kid = run(capsys, "key", "--into", str(path), "--alg", alg)
    token = tmp_path / "token"
    token.write_text(run(capsys, "make", "--keys", str(path), "--uid", "ann", "--ttl", "60") + "\n")
    line = run(capsys, "check", "--keys", str(path), f"@{token}")
    assert line.startswith(f"ann  key {kid} ({alg})  good until ")
    said = json.loads(run(capsys, "check", "--keys", str(path), f"@{token}", "--json"))
    assert (said["uid"], said["kid"], said["alg"]) == ("ann", kid, alg)


def test_a_key_file_is_for_its_owner_alone_and_keys_are_added(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    keys.chmod(0o640)
    run(capsys, "key", "--into", str(keys), "--kid", "second")
    assert load(keys).kids == {"first", "second"}
    assert stat.S_IMODE(keys.stat().st_mode) == 0o640
    assert [path.name for path in keys.parent.iterdir()] == ["keys.json"]


def test_a_public_file_that_a_secret_is_added_to_is_closed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer, servers = tmp_path / "issuer.json", tmp_path / "servers.json"
    run(capsys, "key", "--into", str(issuer), "--public", str(servers), "--kid", "a")
    assert secrets_of(issuer)
    assert secrets_of(servers) == []
    assert stat.S_IMODE(servers.stat().st_mode) == 0o644
    run(capsys, "key", "--into", str(servers), "--kid", "b")
    assert stat.S_IMODE(servers.stat().st_mode) == 0o640
    assert load(servers).kids == {"a", "b"}


def test_the_public_part_checks_what_the_whole_key_signs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer, servers = tmp_path / "issuer.json", tmp_path / "servers.json"
    run(capsys, "key", "--into", str(issuer), "--public", str(servers), "--alg", "RS256")
    token = run(capsys, "make", "--keys", str(issuer), "--uid", "ann")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(token.encode())))
    assert run(capsys, "check", "--keys", str(servers)).startswith("ann ")
    assert "signs nothing" in run(capsys, "make", "--keys", str(servers), "--uid", "ann", status=1)


def test_a_key_without_a_file_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = json.loads(run(capsys, "key", "--kid", "a", "--alg", "EdDSA"))["keys"]
    assert (entry["kid"], entry["alg"], "d" in entry) == ("a", "EdDSA", True)


def test_the_settings_may_name_the_file_and_the_audience(
    keys: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = keys.with_name("token")
    token.write_text(run(capsys, "make", "--keys", str(keys), "--uid", "ann", "--token-audience", "app"))
    assert "its audience (aud) is not presence" in run(
        capsys, "check", "--keys", str(keys), f"@{token}", status=1
    )
    monkeypatch.setenv("PRESENCE_TOKEN_KEYS", str(keys))
    monkeypatch.setenv("PRESENCE_TOKEN_AUDIENCE", "app")
    assert run(capsys, "check", f"@{token}").startswith("ann ")


def test_the_last_key_signs_unless_another_is_named(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "key", "--into", str(keys), "--kid", "second")
    token = keys.with_name("token")
    for words, kid in (([], "second"), (["--kid", "first"], "first")):
        token.write_text(run(capsys, "make", "--keys", str(keys), "--uid", "ann", *words))
        said = json.loads(run(capsys, "check", "--keys", str(keys), "--json", f"@{token}"))
        assert said["kid"] == kid
    assert "no key is named 'third'" in run(
        capsys, "make", "--keys", str(keys), "--uid", "ann", "--kid", "third", status=1
    )


def test_why_a_token_is_refused_is_said(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = keys.with_name("token")
    good = run(capsys, "make", "--keys", str(keys), "--uid", "ann")
    other = keys.with_name("other.json")
    run(capsys, "key", "--into", str(other), "--kid", "first", "--alg", "HS256")
    for text, says in (
        ("nonsense", "is no JWT in compact form"),
        (good + "=", "is no JWT in compact form"),
        (run(capsys, "make", "--keys", str(other), "--uid", "ann"), "its signature is not"),
        (good.replace(good.split(".")[0], "eyJhbGciOiJub25lIiwia2lkIjoiZmlyc3QifQ"), "no key has"),
    ):
        token.write_text(text)
        complaint = run(capsys, "check", "--keys", str(keys), f"@{token}", status=1)
        assert says in complaint
        assert text not in complaint


def test_a_token_among_the_arguments_is_refused_and_not_repeated(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = run(capsys, "make", "--keys", str(keys), "--uid", "ann")
    complaint = run(capsys, "check", "--keys", str(keys), token, status=2)
    assert "others on this machine can see arguments" in complaint
    assert token not in complaint


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["make", "--uid", "ann"], 2, "give --keys FILE"),
        (["check"], 2, "give --keys FILE"),
        (["make", "--keys", "/nowhere", "--uid", "ann"], 1, "/nowhere: cannot be read"),
        (["make", "--keys", "/nowhere", "--uid", "a b"], 2, "is no uid"),
        (["check", "--keys", "/nowhere"], 1, "/nowhere: cannot be read"),
        (["key", "--kid", "k" * 65], 1, "kid must be"),
        (["key", "--into", "/nowhere/keys.json"], 1, "/nowhere"),
        (["key", "--alg", "HS256", "--public", "/nowhere"], 2, "has no public part"),
        (["make", "--uid", "ann", "--ttl", "0"], 2, "no time"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in run(capsys, *words, status=status)


def test_a_name_that_is_taken_makes_no_key(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = keys.read_text()
    complaint = run(capsys, "key", "--into", str(keys), "--kid", "first", status=1)
    assert "another key has this kid" in complaint
    assert keys.read_text() == before
    assert secrets_of(keys)[0] not in complaint


def test_a_file_that_is_no_key_file_is_left_alone(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys.write_text("canary")
    complaint = run(capsys, "key", "--into", str(keys), status=1)
    assert "is not valid JSON" in complaint
    assert "canary" not in complaint
    assert keys.read_text() == "canary"


# Tokens of operators


def made_admin(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["token", "admin", *words]) == 0
    return capsys.readouterr().out


def test_what_is_printed_is_a_line_that_servers_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    path.write_text(made_admin(capsys, "--role", "read", "--name", "grafana"))
    path.chmod(0o600)
    role, name, secret = path.read_text().split()
    assert (role, name) == ("read", "grafana")
    token = load_tokens(path).find(secret)
    assert token is not None
    assert (token.role, token.name) == ("read", "grafana")


def test_two_secrets_are_never_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert made_admin(capsys, "--role", "act", "--name", "ann") != made_admin(
        capsys, "--role", "act", "--name", "ann"
    )


def test_a_file_is_made_for_its_owner_alone_and_added_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    assert made_admin(capsys, "--role", "read", "--name", "grafana", "--into", str(path)) == "read grafana\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(f"# kept\n{path.read_text().rstrip()}")
    made_admin(capsys, "--role", "act", "--name", "ann", "--into", str(path))
    assert len(load_tokens(path)) == 2
    assert path.read_text().startswith("# kept\nread grafana ")
    assert [each.name for each in tmp_path.iterdir()] == ["tokens"]


def test_nothing_is_added_to_a_file_that_no_server_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens"
    path.write_text("read grafana short\n")
    path.chmod(0o600)
    assert main(["token", "admin", "--role", "act", "--name", "ann", "--into", str(path)]) == 1
    assert "line 1: SECRET must be" in capsys.readouterr().err
    assert path.read_text() == "read grafana short\n"


@pytest.mark.parametrize("name", ["", "two words", "-dash", "x" * 65, "line\nbreak", "ä"])
def test_a_name_that_the_log_could_mistake_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "admin", "--role", "read", f"--name={name}"]) == 2
    assert "presence: token admin: " in capsys.readouterr().err
