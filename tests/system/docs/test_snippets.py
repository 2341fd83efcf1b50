"""Every command, program and setting that a page shows runs as it stands there.

A reader copies them. So does this test, page by page: commands in order and in one directory, programs, and
files of settings. What is not run stands in one list, with the reason.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet

from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.running import problem_of
from tests.docs.stage import open_stage

PAGES = {page: text for page, text in pages().items() if page != "CHANGELOG.md"}
RUN = {"sh", "python", "toml", "js", "ts"}
LOAD = "minutes of load; tests/system/loadtest/test_locust.py runs one like it, and shorter"

WITH_SERVER = {"docs/event-stream.md", "docs/operations.md", "docs/troubleshooting.md"}
"""Pages whose commands need users who come and go, although they name no port of a server."""

T = TypeVar("T")
Table = dict[str, dict[str, T]]
"""By page, and by how a block begins or a line of it."""

# Why a block is not run here.
NOT_RUN: Table[str] = {
    "README.md": {
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[embedded]'": "installs; .ci/run does",
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[demo]'": (
            "installs, and takes half a minute; tests/system/demo/test_demo.py runs it"
        ),
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]'": "all tests; .ci/run does",
    },
    "examples/README.md": {"python3 -m venv": "installs; tests/system/examples/test_examples.py runs them"},
    "deploy/README.md": {
        "for user in ADMIN SERVER": "tests/system/deploy/test_redis.py runs it on the file itself",
    },
    "docs/first-deployment.md": dict.fromkeys(
        (
            "presence token keygen",
            "# presence.toml",
            "presence doctor",
            "presence serve",
            "presence token sign",
            "presence status ann",
            "presence tail",
        ),
        "tests/system/docs/test_first_deployment.py runs the page",
    ),
    "docs/maintenance.md": dict.fromkeys(
        (
            'ACL SETUSER presence-server "#$(',
            'ACL SETUSER presence-server "!$(',
            "presence token keygen",
            "json.load(sys.stdin)",
            "aof_rewrite_in_progress",
        ),
        "tests/system/docs/test_maintenance.py runs it, on a Redis with the shipped users",
    ),
    "docs/own-client.md": dict.fromkeys(
        ("// `login` returns the payload", "const login = () =>"),
        "tests/system/protocol/test_plain_javascript.py runs them in a browser",
    ),
    "loadtest/README.md": {
        "python3 -m venv .venv": "installs; tests/system/deploy/test_release.py installs and runs the wheel",
        ".venv/bin/python -m presence.loadtest --headless --users 500": LOAD,
        "import random": LOAD,
        "python -m presence.loadtest --headless --processes 4": "other machines",
    },
    "protocol/clients/node/README.md": {
        "npm ci": "tests/system/protocol/test_node.py builds and tests it",
        "import { PresenceClient, Recip": "tests/system/protocol/test_node.py compiles and runs it",
        "import { PresenceClient, storedDevice": "tests/system/protocol/test_browser.py runs it",
    },
    "protocol/clients/java/README.md": {
        "./build": "tests/system/protocol/test_java.py builds and tests it",
    },
}
# What a program prints once it has worked, for it runs for ever.
FOR_EVER: Table[str] = {
    "README.md": {
        "from presence.client import Delivered": "bob is",
        "from presence.subscriber import Gap, Offline, subscribe_sync": "push to zoe",
    },
    "docs/apps.md": {
        "from presence.client import Disconnected, PresenceChanged": "bob is",
    },
    "docs/rooms.md": {
        "client.watch_rooms(": "lobby 1 joined:",
        "from presence.rooms import Gap, Occupied": "lobby was opened by",
    },
    "docs/followups.md": {"due_sync(": "mail to zoe mail template 7"},
    "docs/timers.md": {"await handle_due(": "mail to ann"},
    "docs/subscribers.md": {
        "from presence.subscriber import Gap, Offline, Online, subscribe": "zoe",
        "events.drain()": "mail about zoe",
        "places = {}": "Online",
        "for event in follow_sync(": "1 online",
        'sqlite3.connect("users.db")': "zoe is in the table",
        'sqlite3.connect("visits.db")': "zoe was here for",
    },
}
# All that a program prints, without the times at the ends of lines.
PRINTED: Table[list[str]] = {
    "docs/apps.md": {
        "ca.pem": ["bob is offline"],
        "within a second": ["bob offline", "eve offline", "no change within a second"],
    },
    "docs/messages.md": {
        "keep it, or send a push notification": [
            "eve is not there: keep it, or send a push notification",
            "handed to 1 of bob",
            "ann says hello",
        ],
        "send_confirmed(": ["1 1 1 0"],
    },
    "docs/own-client.md": {
        "socket.create_connection": ["[64, 1]", "offline", "recipient_offline", "[64, 4]", "[64, 5]"],
    },
    "docs/rooms.md": {
        'join=["game:7"]': ["('lobby',)", "('game:7',)"],
    },
    "docs/status-and-privacy.md": {
        '"status": "at lunch"': ["away at lunch"],
    },
    "docs/timers.md": {
        "open_timer_service()": ["first"],
        "queue.schedule(": ["waiting: 1"],
        '"ring", "reminders"': ["reminded 1000"],
        '"expiry", "orders"': ["lapsed order-7 2 tickets"],
        "RedisWheel(": ["came online: True", "went offline: ann"],
    },
}


def entry_of(block: Block, table: Table[T]) -> T | None:
    """Return a block's row of a table."""
    return next((said for begin, said in table.get(block.page, {}).items() if begin in block.text), None)


def on_trio(block: Block) -> Block:
    """Return a program on asyncio as one on trio; any other block as it is."""
    if block.language != "python" or "asyncio.run(main())" not in block.text:
        return block
    text = block.text.replace("asyncio.run(main())", "trio.run(main)").replace("asyncio", "trio")
    return block._replace(text=text)


def all_blocks() -> list[Block]:
    return [block for page, text in PAGES.items() for block in blocks(page, text)]


def page_of(page: str) -> ParameterSet:
    """Return a page as a parameter; it is skipped without the programs that pip does not install."""
    shown = "".join(block.text for block in blocks(page, PAGES[page]))
    needed = [name for name in ("redis-cli", "curl") if re.search(rf"^{name} ", shown, re.MULTILINE)]
    return pytest.param(page, marks=[pytest.mark.needs(name) for name in needed])


@pytest.mark.parametrize(
    "page", [page_of(page) for page in PAGES if any(b.page == page for b in all_blocks())]
)
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.nightly)])
def test_every_snippet_runs(page: str, backend: str, tmp_path: Path) -> None:
    mine = [block for block in all_blocks() if block.page == page and block.language in RUN]
    due = [block for block in mine if not entry_of(block, NOT_RUN)]
    if not due:
        return
    is_live = page in WITH_SERVER or any(entry_of(block, FOR_EVER) is not None for block in due)
    with open_stage(tmp_path / "stage", "".join(block.text for block in due), is_live=is_live) as stage:
        for block in map(on_trio, due) if backend == "trio" else due:
            stage.settle()
            problem = problem_of(block, stage, entry_of(block, FOR_EVER), entry_of(block, PRINTED))
            assert problem is None, f"{block}: {problem}"


def test_no_entry_of_a_list_is_stale_and_what_runs_elsewhere_runs_there() -> None:
    tables: list[Table[Any]] = [NOT_RUN, FOR_EVER, PRINTED]
    entries = [(page, begin) for table in tables for page, rows in table.items() for begin in rows]
    shown = [block for block in all_blocks() if block.language in RUN]
    for page, begin in entries:
        assert sum(block.page == page and begin in block.text for block in shown) == 1, (page, begin)
    for reason in (reason for rows in NOT_RUN.values() for reason in rows.values()):
        for path in re.findall(r"(?:tests|\.ci)/[\w./]+", reason):
            assert (ROOT / path.rstrip(".")).is_file(), path


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "presence nodez --redis redis://localhost:6379\n"),
        ("sh", "presence status --redis redis://localhost:6379 ann\npresence tail --tipe offline\n"),
        ("sh", "redis-cli XRANGE 'presence:{0}:events' - + CUONT 10\n"),
        ("sh", "presence serve --idle-time-out 30\n"),
        ("python", "from presence.client import conect\n"),
        ("toml", "idle_time = 30\n"),
        ("js", "console.log(1)\n"),
    ],
)
def test_a_wrong_one_is_caught(language: str, text: str, tmp_path: Path) -> None:
    with open_stage(tmp_path / "stage", text) as stage:
        assert problem_of(Block("README.md", 1, language, text), stage)
