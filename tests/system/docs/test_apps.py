"""The page for those who write apps: its programs run, and what it names is there."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import presence
import presence.client
import protocol
from presence.client import connect_blocking
from presence.client.pacing import RETURN_MAX_S
from presence.config import SPECS
from presence.embedded import embedded_redis
from protocol import Code
from tests.credentials import SECRET, token, write_keys
from tests.live.server_process import ServerProcess, running_server
from tests.transports import certificates

FOLDER = Path(presence.__file__).parent / "docs"
PAGE = (FOLDER / "apps.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- run (\w+) -->\n```python\n(.+?)```", PAGE, re.DOTALL))
SAID = {
    "wire": ["[64, 1]", "offline", "recipient_offline", "[64, 4]", "[64, 5]"],
    "messages": [
        "eve is not there: keep it, or send a push notification",
        "handed to 1 of bob",
        "ann says hello",
    ],
    "seen": ["away at lunch"],
    "script": ["bob offline", "eve offline", "nobody came or went within a second"],
}


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with embedded_redis() as redis, running_server("--redis", redis.url) as server:
        yield server


def command(name: str, server: ServerProcess) -> list[str]:
    return [sys.executable, "-u", "-W", "error", "-c", SNIPPETS[name].replace("7400", str(server.address[1]))]


def without_times(line: str) -> str:
    return re.sub(r" \d{13}$", "", line).rstrip()


def test_each_program_says_what_it_shows(server: ServerProcess) -> None:
    assert SNIPPETS.keys() == SAID.keys() | {"roster", "stranger"}
    for name in ("script", "wire", "messages", "seen"):  # the first, before anybody was there
        run = subprocess.run(command(name, server), capture_output=True, text=True, timeout=30, check=False)
        assert run.returncode == 0, run.stderr
        assert [without_times(line) for line in run.stdout.splitlines()] == SAID[name], name


def test_the_roster_shows_who_comes_and_goes(server: ServerProcess) -> None:
    program = subprocess.Popen(command("roster", server), stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(20, program.kill)
    timer.start()
    try:
        assert program.stdout is not None
        said = [program.stdout.readline().strip() for _ in range(2)]
        with connect_blocking(*server.address, uid="bob", meta={"status": "at lunch"}) as bob:
            said.append(program.stdout.readline().strip())
            bob.logout("background")
        said.append(program.stdout.readline().strip())
    finally:
        timer.cancel()
        program.kill()
        program.communicate()
    assert said == [
        "bob is offline  (watched)",
        "eve is offline  (watched)",
        "bob is online at lunch (login)",
        "bob is offline  (background)",
    ]


def test_over_the_internet_a_program_and_a_shell_log_in(tmp_path: Path) -> None:
    files = {"ca.pem": tmp_path / "ca.pem", "ann.token": tmp_path / "ann.token"}
    certificates.authority().cert_pem.write_to_path(str(files["ca.pem"]))
    files["ann.token"].write_text(f"{token('ann')}\n")
    cert, key = certificates.write(tmp_path)
    keys = write_keys(tmp_path / "keys.json", {"a": SECRET})
    flags = ("--tls-only", "--tls-cert", str(cert), "--tls-key", str(key), "--token-keys", str(keys))
    shell = re.search(r"`presence (client ann --host [^`]+)`", PAGE)
    assert shell
    with embedded_redis() as redis, running_server("--redis", redis.url, *flags) as server:
        texts = [SNIPPETS["stranger"], shell[1]]
        for name, value in [*files.items(), ("7443", server.address[1])]:
            texts = [text.replace(name, str(value)) for text in texts]
        programs = [["-W", "error", "-c", texts[0]], ["-m", "presence", *texts[1].split()]]
        said = []
        for program in programs:
            run = subprocess.run(
                [sys.executable, *program],
                input="/query bob\n/quit\n",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (run.returncode, run.stderr) == (0, ""), run.stderr
            said.append(run.stdout)
    assert said[0] == "bob is offline\n"
    assert "bob is offline" in said[1]


def test_its_settings_are_those_of_the_program() -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith("| ") and row.count("|") == 4]
    named = [each for row in rows for each in re.findall(r"`(\w+)` (\d+|oldest)\b", row.split("|")[2])]
    assert len(named) >= 9
    for name, default in named:
        assert str(SPECS[name].default).removesuffix(".0") == default, name
    assert "`away_after`" in PAGE
    assert SPECS["away_after"].default == 0
    assert "(1,000 a connection)" in PAGE
    assert SPECS["max_watches"].default == 1000


def test_its_figures_are_those_of_the_code() -> None:
    assert RETURN_MAX_S == 60
    assert f"up to {protocol.UIDS_MAX} users a call" in PAGE
    assert f"at most {protocol.META_MAX_BYTES} bytes packed" in PAGE
    assert protocol.FRAME_LIMIT_BYTES == 16 * 1024
    assert SPECS["idle_timeout"].default == 30
    assert SPECS["disconnect_grace"].default == 5
    assert SPECS["seen_retention_days"].default == 30


def test_its_types_and_codes_are_there() -> None:
    for name in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", PAGE):
        assert hasattr(presence.client, name), name
    for name, code in re.findall(r"`(\w+)` \((\d{3})\)", PAGE):
        if name.islower():
            assert Code(int(code)).reason == name
        else:
            errors = (presence.client.errors._FAILED, presence.client.errors._ENDED)
            types = {table[int(code)].__name__ for table in errors if int(code) in table}
            assert name in {*types, "LoginRefused"}, name


def test_every_file_that_is_named_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (FOLDER / target).exists(), target
