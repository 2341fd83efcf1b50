"""Logs: they block no caller, contain no secret, and no value controls the terminal."""

import errno
import fcntl
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest
import structlog

from presence.common.logs import LogWriter, RateLimited, configure
from presence.common.redaction import redact_text
from tests.support.waiting import wait_for

CANARY = "canary-3f9c"
PATIENCE_S = 10.0


class Pipe:
    """A pipe: its content so far, and a way to fill it."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()

    def fill(self) -> None:
        """Make the next write block, as if the reader had stopped."""
        os.set_blocking(self.write_fd, False)
        try:
            while True:
                os.write(self.write_fd, b"." * 4096)
        except BlockingIOError:
            os.set_blocking(self.write_fd, True)

    def text(self) -> str:
        """Close the writing end and return all content."""
        os.close(self.write_fd)
        self.write_fd = -1
        with open(self.read_fd, closefd=False, encoding="utf-8") as reader:
            return reader.read()

    def close(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    level = logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers.clear()
    logging.root.setLevel(level)


def logged(pipe: Pipe, log_format: str, event: str, **values: object) -> str:
    with configure(log_format, fd=pipe.write_fd):
        structlog.get_logger().info(event, **values)
    return pipe.text()


def test_json_lines_have_event_level_time_and_values_and_a_raw_line_stands_alone_in_order(pipe: Pipe) -> None:
    with configure("auto", "info", fd=pipe.write_fd) as writer:  # JSON, because there is no terminal
        structlog.get_logger().debug("hidden")
        structlog.get_logger().info("started", port=7400, ratio=float("inf"))
        writer.raw_line("ready 127.0.0.1:7400")
        logging.getLogger("trio.somewhere").error("no %s", "descriptors")
    first, raw, last = pipe.text().splitlines()
    entry = json.loads(first)
    assert list(entry)[:3] == ["timestamp", "level", "event"]
    assert entry.pop("timestamp").endswith("Z")
    assert entry == {"event": "started", "level": "info", "port": 7400, "ratio": "inf"}
    assert raw == "ready 127.0.0.1:7400"
    entry = json.loads(last)
    assert (entry["event"], entry["logger"], entry["level"]) == ("no descriptors", "trio.somewhere", "error")


def test_a_console_line_has_event_level_and_quoted_values_and_is_what_a_terminal_gets(pipe: Pipe) -> None:
    line = logged(pipe, "console", "started", port=7400, why="a b=c")
    assert "info    started" in line
    assert line.endswith('port=7400 why="a b=c"\n')
    master, terminal = os.openpty()
    with open(master, "rb", buffering=0) as shown, open(terminal, "wb", buffering=0):
        with configure("auto", fd=terminal):
            structlog.get_logger().info("started", port=1)
        assert shown.read(4096).endswith(b"port=1\r\n")


def test_a_stuck_reader_does_not_block_logging(pipe: Pipe) -> None:
    pipe.fill()
    writer = LogWriter(pipe.write_fd, capacity_lines=100)
    began = time.monotonic()
    for number in range(10_000):
        writer.line(f"line {number}")
    assert time.monotonic() - began < PATIENCE_S
    assert writer.dropped >= 10_000 - 100 - 1  # the writing thread may have one line
    os.close(pipe.read_fd)  # ends the writing thread
    pipe.read_fd = -1
    writer.close()


def test_process_ends_with_a_stuck_reader(pipe: Pipe) -> None:
    pipe.fill()
    program = "from presence.common.logs import LogWriter\nwith LogWriter() as w: w.line('x')"
    done = subprocess.run([sys.executable, "-c", program], check=False, stderr=pipe.write_fd, timeout=20)
    assert done.returncode == 0


def test_a_later_line_reports_how_many_were_dropped(pipe: Pipe) -> None:
    pipe.fill()
    with configure("json", fd=pipe.write_fd) as writer:
        writer._capacity_lines = 10
        for _ in range(500):
            structlog.get_logger().info("flood")
        dropped = writer.dropped
        writer.raw_line("ready 127.0.0.1:1")  # never dropped
        # Reading unblocks the writer.
        flood = os.read(pipe.read_fd, 1 << 20)
    lines = (flood.decode() + pipe.text()).lstrip(".").splitlines()
    lines.remove("ready 127.0.0.1:1")
    notices = [entry for entry in map(json.loads, lines) if entry["event"] == "log lines dropped"]
    assert dropped >= 489
    assert sum(entry["count"] for entry in notices) == dropped


def test_non_blocking_descriptor_gets_every_line(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_fd, False)
    fcntl.fcntl(pipe.write_fd, fcntl.F_SETPIPE_SZ, 4096)
    writer = LogWriter(pipe.write_fd)
    for number in range(1000):
        writer.line(f"{number:0100}")
    got = b""
    while got.count(b"\n") < 1000:
        got += os.read(pipe.read_fd, 65536)
    writer.close()
    assert got.decode().splitlines() == [f"{number:0100}" for number in range(1000)]


def test_a_line_that_a_full_disk_has_cut_off_does_not_spoil_the_next(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [5]

    def limited(fd: int, data: bytes) -> int:
        if fd != pipe.write_fd:
            return write(fd, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)
    with LogWriter(pipe.write_fd) as writer:
        writer.line("first line")
        wait_for(lambda: writer.dropped)
        room[0] = 1000
        writer.line("second line")
    lines = pipe.text().splitlines()
    assert lines[0] == "first"
    assert "second line" in lines[1:]


def test_a_line_for_which_there_is_no_memory_is_dropped_alone(pipe: Pipe) -> None:
    class Large(str):
        def encode(self, *_: object) -> NoReturn:
            raise MemoryError

    with LogWriter(pipe.write_fd) as writer:
        writer.line(Large("large"))
        writer.line("second line")
    assert "second line" in pipe.text().splitlines()
    assert writer.dropped == 1


def test_a_closed_reader_does_not_end_the_program(pipe: Pipe) -> None:
    os.close(pipe.read_fd)
    pipe.read_fd = -1
    writer = LogWriter(pipe.write_fd)
    writer.line("unread")
    writer.close()
    assert writer.dropped == 1


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize(
    "values",
    [
        {"token": CANARY},
        {"admin_token": CANARY},
        {"Password": CANARY.encode()},
        {"headers": {"Authorization": f"Bearer {CANARY}"}},
        {"login": [{"payload": {"token": CANARY}}]},
        {"fields": {b"password": CANARY}},
        {"url": f"redis://user:{CANARY}@host:6379/0"},
        {"url": f"rediss://:{CANARY}@x@host"},
        {"url": f"redis://host?password={CANARY}"},
        {"error": ValueError(f"cannot reach redis://:{CANARY}@host")},
        {"exc_info": ConnectionError(f"redis://:{CANARY}@host is away")},
        {"message": f"Authorization: Bearer {CANARY}"},
    ],
    ids=str,
)
def test_secrets_are_not_written(pipe: Pipe, log_format: str, values: dict[str, object]) -> None:
    text = logged(pipe, log_format, "something", **values)
    assert "***" in text
    assert CANARY not in text


@pytest.mark.parametrize(
    "secret",
    [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.CANARYCANARYCANARY",
        "-----BEGIN RSA PRIVATE KEY-----\nCANARY\nCANARY\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\\nCANARY, and cut off",
        '{"kty": "oct", "k": "CANARYCANARYCANARY"}',
        "{'kty': 'OKP', 'd':'CANARYCANARYCANARY', 'x': 'public'}",
    ],
)
def test_tokens_and_keys_are_recognized_by_their_form(secret: str) -> None:
    text = redact_text(f"cannot take {secret}, and that is that")
    assert "CANARY" not in text
    assert "***" in text
    assert text.startswith("cannot take ")


@pytest.mark.parametrize(
    "text", ["redis://host:6379/0 and a@b", 'eyJ is how they begin, "k": 1, BEGIN CERTIFICATE', "a.b.c"]
)
def test_redaction_leaves_plain_text_alone(text: str) -> None:
    assert redact_text(text) == text


EVIL = "\x1b[2J\x07\r\n2031-01-01 info forged\x7f\x9b31m\u202egnp.exe"


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("where", ["event", "value", "key", "nested", "bytes", "exception"])
def test_control_characters_are_escaped(pipe: Pipe, log_format: str, where: str) -> None:
    cases: dict[str, tuple[str, dict[str, object]]] = {
        "event": (EVIL, {}),
        "value": ("x", {"uid": EVIL}),
        "key": ("x", {EVIL: 1}),
        "nested": ("x", {"meta": {EVIL: [EVIL]}}),
        "bytes": ("x", {"body": EVIL.encode()}),
        "exception": ("x", {"exc_info": ValueError(EVIL)}),
    }
    event, values = cases[where]
    text = logged(pipe, log_format, event, **values)
    assert "gnp.exe" in text
    assert all(char.isprintable() or char == "\n" for char in text)
    # Only an exception has further lines, and those are indented.
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


def test_value_that_cannot_be_shown_does_not_raise(pipe: Pipe) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("broken")

    assert json.loads(logged(pipe, "json", "x", it=Broken()))["it"] == "<Broken>"


def test_a_rate_limit_is_one_per_event_and_counts_suppressed_lines() -> None:
    now, lines = [100.0], structlog.testing.LogCapture()
    structlog.configure(processors=[lines])
    limited = RateLimited(structlog.get_logger(), clock=lambda: now[0])
    for _ in range(5):
        limited.warning("full", uid="u")
    limited.error("broken", uid="w")
    now[0] += 1.0
    limited.warning("full", uid="v")
    logged_lines = [(e["log_level"], e["uid"], e.get("suppressed")) for e in lines.entries]
    assert logged_lines == [("warning", "u", None), ("error", "w", None), ("warning", "v", 4)]


def test_a_rate_limit_by_a_field_is_one_per_value_of_it() -> None:
    now, lines = [100.0], structlog.testing.LogCapture()
    structlog.configure(processors=[lines])
    limited = RateLimited(structlog.get_logger(), by="why", clock=lambda: now[0])
    for why in ("busy", "busy", "banned"):
        limited.info("refused", why=why)
    now[0] += 1.0
    for why in ("busy", "banned"):
        limited.info("refused", why=why)
    logged_lines = [(e["why"], e.get("suppressed")) for e in lines.entries]
    assert logged_lines == [("busy", None), ("banned", None), ("busy", 1), ("banned", None)]
