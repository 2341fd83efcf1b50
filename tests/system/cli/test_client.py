"""``presence client``, run as a process against a real server."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from presence.cli.main import main
from tests.client.quick_server import QuickServer, quick_server

pytestmark = pytest.mark.usefixtures("clean_environment")
DEADLINE_S = 20.0
StartClient = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def server() -> Iterator[QuickServer]:
    with quick_server() as server:
        yield server


@pytest.fixture
def uid(request: pytest.FixtureRequest) -> str:
    """A user of this test alone."""
    return hashlib.sha256(request.node.name.encode()).hexdigest()[:12]


@pytest.fixture
def start(server: QuickServer) -> Iterator[StartClient]:
    running: list[subprocess.Popen[str]] = []

    def start(*flags: str, stdin: int | None = subprocess.PIPE, source: str = "") -> subprocess.Popen[str]:
        host, port = server.address
        command = [sys.executable, "-m", "presence", "client", "--host", host, "--port", str(port), *flags]
        shell = ["/bin/bash", "-c", f'exec "$@" {source}', "bash", *command]
        pipe = subprocess.PIPE
        client = subprocess.Popen(shell, stdin=stdin, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        running.append(client)
        return client

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line of output without the time."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")[10:]


def test_a_device_logs_in_beats_and_quits(server: QuickServer, uid: str, start: StartClient) -> None:
    client = start(uid, "--device", "phone")
    assert line(client).startswith("online: session ")
    time.sleep(2.0)  # two idle time-outs
    out, err = client.communicate("/quit\n", DEADLINE_S)
    assert (client.returncode, out, err) == (0, "", "")
    assert server.told(uid) == ["phone online login", "phone offline logout"]


def test_lines_of_input_become_requests(uid: str, start: StartClient) -> None:
    nobody = f"{uid}-nobody"
    script = f"""{nobody} hello there
/query {nobody}
/away
/dance
{nobody}

/query a\tb{{
/status at lunch
/status
/back
/watch {nobody}
/who
/unwatch
/quit"""
    out, err = start(uid).communicate(script, DEADLINE_S)
    output = [each[10:] for each in out.splitlines()]
    assert output[1].startswith("failed: recipient_offline (314): ")
    assert output[2:4] == [f"{nobody} is offline, never seen or long ago", "shown as away"]
    assert [each.startswith("TO text | /query") for each in output[4:6]] == [True, True]
    assert output[6].startswith("failed: kind 5: query: uids has an element")
    assert output[7:10] == ["shown with status: at lunch", "shown without a status", "shown as online"]
    assert output[10:] == [*[f"{nobody} is offline, never seen or long ago"] * 2, "watching 0"]
    assert err == ""


def test_two_devices_see_each_other_and_talk(uid: str, start: StartClient) -> None:
    ann, bob = f"{uid}-a", f"{uid}-b"
    calm = ("--idle-timeout", "30")  # not the second of this server: nothing here is about beats
    watcher = start(ann, *calm)
    assert line(watcher).startswith("online: ")
    assert watcher.stdin is not None
    watcher.stdin.write(f"/watch {bob}\n")
    assert line(watcher) == f"{bob} is offline, never seen or long ago"
    other = start(bob, *calm)
    assert line(other).startswith("online: ")
    assert re.fullmatch(rf"{bob} is online since [\d:]+ \(login\)", line(watcher))
    assert other.stdin is not None
    pushed = []
    for each in (f"{ann} hello there", "/status at lunch", "/away", "/quit background"):
        other.stdin.write(f"{each}\n")
        pushed.append(line(watcher))
    assert pushed[0] == f"{bob}: hello there"
    assert re.fullmatch(rf"{bob} is online since [\d:]+, status: at lunch \(updated\)", pushed[1])
    assert re.fullmatch(rf"{bob} is away since [\d:]+, status: at lunch \(away\)", pushed[2])
    assert re.fullmatch(rf"{bob} is offline, last seen [\d:]+ \(background\)", pushed[3])
    assert line(other) == "delivered to 1 session"
    second = start(ann, *calm)
    assert line(second).startswith("online: ")
    assert line(watcher) == "goodbye from the server: replaced (300)"
    assert watcher.wait(DEADLINE_S) == 1
    assert watcher.stderr is not None
    assert watcher.stderr.read() == "presence: replaced (300)\n"


@pytest.mark.parametrize("stdin", ["pipe", "null", "file", "closed"])
def test_input_that_is_no_terminal_may_end(
    server: QuickServer, uid: str, start: StartClient, tmp_path: Path, stdin: str
) -> None:
    (tmp_path / "input").write_text("/who\n")
    source = {"null": "< /dev/null", "file": f"< {tmp_path}/input", "closed": "<&-", "pipe": "< <(true)"}[
        stdin
    ]
    client = start(uid, source=source)
    assert line(client).startswith("online: ")
    time.sleep(1.5)  # more than the idle time-out
    assert client.poll() is None
    client.send_signal(signal.SIGTERM if stdin == "pipe" else signal.SIGINT)
    _, err = client.communicate(timeout=DEADLINE_S)
    assert (client.returncode, err) == (0, "")
    assert server.told(uid) == ["online login", "offline logout"]


def test_the_end_of_a_terminals_input_logs_out(server: QuickServer, uid: str, start: StartClient) -> None:
    ours, theirs = os.openpty()
    client = start(uid, stdin=theirs)
    os.close(theirs)
    assert line(client).startswith("online: ")
    os.write(ours, b"\x04")
    assert client.wait(DEADLINE_S) == 0
    os.close(ours)
    assert server.told(uid) == ["online login", "offline logout"]


def test_nobody_to_read_ends_it_quietly(uid: str, start: StartClient) -> None:
    client = start(uid)
    assert line(client).startswith("online: ")
    assert client.stdout is not None
    assert client.stdin is not None
    client.stdout.close()
    client.stdin.write("/help\n")
    client.stdin.flush()
    assert client.wait(DEADLINE_S) == 0
    assert client.stderr is not None
    assert client.stderr.read() == ""
    client.stdout = None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ann", "--port", "1"], "cannot reach 127.0.0.1:1: Connection refused"),
        (["a b"], "uid holds a control character, white space"),
        (["ann", "--token", "@/no/such/file"], "No such file"),
        (["ann", "--token", "s3cret"], "give @FILE, or -"),
        (["ann", "--ca", "/no/such/file"], "/no/such/file: No such file"),
        (["ann", "--ca", "/dev/null"], "/dev/null: "),
        (["ann", "--cert", "/no/such/file"], "/no/such/file: No such file"),
        (["ann", "--key", "k.pem"], "--key needs --cert"),
        (["ann", "--port", "0"], "port"),
        ([], "required: UID"),
    ],
)
def test_what_cannot_be_is_said(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["client", *argv]) == (1 if "refused" in message else 2)
    complaint = capsys.readouterr().err
    assert message in complaint
    assert "s3cret" not in complaint
