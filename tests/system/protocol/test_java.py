"""The client in Java: its own tests, its README, its jar, and a day with real servers."""

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import trustme

from presence.client import BlockingClient
from presence.store.embedded import EmbeddedRedis
from tests.client.test_names import TABLE
from tests.protocol.vectors import BAD, GOOD
from tests.support.server_process import running_server
from tests.system.protocol import any_client
from tests.system.protocol.device import ClientProgram
from tests.system.protocol.java_package import JAVA, PROTOCOL, SOURCE, class_path, in_java, jar, run

pytestmark = pytest.mark.needs("javac")

JAR_LIMIT_BYTES = 180_000


@pytest.fixture
def program(java_client: Path) -> ClientProgram:
    return in_java(java_client)


test_what_a_user_hides_is_hidden_from_it = any_client.what_a_user_hides_is_hidden_from_it
test_it_watches_rooms_again_after_a_restart = any_client.it_watches_rooms_again_after_a_restart
test_a_session_with_real_servers = any_client.a_session_with_real_servers
test_it_logs_in_with_a_token_over_tls = any_client.it_logs_in_with_a_token_over_tls


def test_its_own_tests_pass_with_every_vector(java_client: Path) -> None:
    tests = run(java_client, *JAVA, "-cp", class_path(java_client), "presence.client.Tests", str(PROTOCOL))
    assert tests.returncode == 0, re.findall(r"^not ok .*(?:\n(?!ok ).*){0,20}", tests.stdout, re.MULTILINE)
    assert f"vectors: {len(GOOD)} good and {len(BAD)} bad" in tests.stdout
    assert tests.stdout.endswith(", failed: 0\n")


def test_the_jar_has_the_client_and_nothing_else(java_client: Path) -> None:
    assert jar(java_client).stat().st_size < JAR_LIMIT_BYTES
    with zipfile.ZipFile(jar(java_client)) as packed:
        names = {name for name in packed.namelist() if not name.endswith("/")}
    assert {name for name in names if not name.startswith("presence/client/")} == {
        "META-INF/MANIFEST.MF",
        "LICENSE",
    }
    assert not any("Test" in name for name in names)
    assert (java_client / "LICENSE").read_text() == (PROTOCOL.parent / "LICENSE").read_text()


def readme_programs() -> dict[str, str]:
    """Return the programs of the client's README by the name of their class."""
    texts = re.findall(r"```java\n(.+?)```", (SOURCE / "README.md").read_text("utf-8"), re.DOTALL)
    return {re.findall(r"public class (\w+)", text)[0]: text for text in texts}


def test_the_programs_of_its_readme_talk_to_each_other(
    java_client: Path, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    shutil.copy(jar(java_client), tmp_path)
    with running_server("--redis", redis_server.url, *any_client.FLAGS) as server:
        for name, text in readme_programs().items():
            (tmp_path / f"{name}.java").write_text(text.replace("7400", str(server.address[1])))
        compiled = run(tmp_path, "javac", "-cp", jar(java_client).name, "Example.java", "Friends.java")
        assert compiled.returncode == 0, compiled.stderr
        java = (*JAVA, "-cp", f"{jar(java_client).name}:.")
        friends = subprocess.Popen([*java, "Friends"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        try:
            with in_java(java_client).device(server.address, "eve") as eve:
                eve.told("connected")
                eve.sees("bob")
            example = run(tmp_path, *java, "Example")
            assert example.returncode == 0, example.stderr
            lines = example.stdout.splitlines()
            assert sorted(lines[:2])[0] == "bob is online"
            assert lines[2:] == ["sessions reached: 1", "bob says so do I"]
        finally:
            friends.kill()
            printed, _ = friends.communicate(timeout=30)
    assert "ann is online\nanswered ann\n" in printed


def test_the_program_of_its_readme_trusts_an_authority_of_its_own(
    java_client: Path, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    shutil.copy(jar(java_client), tmp_path)
    tls = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-only")
    with running_server("--redis", redis_server.url, *tls) as server:
        text = readme_programs()["Authority"].replace("7443", str(server.address[1]))
        (tmp_path / "Authority.java").write_text(text)
        compiled = run(tmp_path, "javac", "-cp", jar(java_client).name, "Authority.java")
        assert compiled.returncode == 0, compiled.stderr
        trusting = run(tmp_path, *JAVA, "-cp", f"{jar(java_client).name}:.", "Authority")
        assert (trusting.stdout, trusting.returncode) == ("online\n", 0), trusting.stderr


def test_the_example_for_android_compiles(java_client: Path) -> None:
    android = java_client / "examples" / "android"
    sources = [str(path) for path in android.rglob("*.java")]
    options = (
        "--release",
        "8",
        "-nowarn",
        "-cp",
        str(jar(java_client)),
        "-d",
        str(java_client / "target" / "android"),
    )
    compiled = run(java_client, "javac", *options, *sources)
    assert compiled.returncode == 0, compiled.stderr


@pytest.fixture(scope="module")
def names(java_client: Path) -> dict[str, Any]:
    """The names in the client, as it prints them."""
    printed = run(java_client, *JAVA, "-cp", class_path(java_client), "presence.client.Names")
    assert printed.returncode == 0, printed.stderr
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def spelled(name: str) -> str:
    """Return Python's spelling in Java's, where times are milliseconds and `private` is a keyword."""
    first, *others = name.split("_")
    in_java = "".join((first, *(each.title() for each in others)))
    return {"private": "privateMeta"}.get(name, f"{in_java}Ms" if name in TABLE["seconds"] else in_java)


def test_its_errors_are_those_of_the_table(names: dict[str, Any]) -> None:
    parents = {name: error["parent"] for name, error in TABLE["errors"].items()}
    assert names["parents"] == parents
    codes = {str(code): name for name, error in TABLE["errors"].items() for code in error["codes"]}
    assert names["codes"] == codes


@pytest.mark.parametrize("part", ["pushes", "results"])
def test_its_fields_are_those_of_the_table(names: dict[str, Any], part: str) -> None:
    assert names[part] == {name: [*map(spelled, fields)] for name, fields in TABLE[part].items()}


def test_its_options_are_those_of_the_table_and_what_is_javas_own(names: dict[str, Any]) -> None:
    own = {"listener", "executor", "clock", "build"}
    given = {"host", "port"}  # to the builder
    assert set(names["options"]) - own == set(map(spelled, TABLE["options"])) - given


def test_its_methods_are_those_of_the_client_in_python(names: dict[str, Any]) -> None:
    methods = {name for name in vars(BlockingClient) if not name.startswith("_")}
    iterators = {name for name in methods if name.endswith("changes")} | {
        "messages"
    }  # here a kind of `receive`
    own = {"connect", "start", "networkChanged", "wake"}
    assert set(names["methods"]) - own == set(map(spelled, methods - iterators))
