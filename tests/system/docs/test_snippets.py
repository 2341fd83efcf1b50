"""Every command, program and setting that a page shows runs as it stands there.

A reader copies them. So does this test, page by page: commands in order and in one directory, programs, and
files of settings. What is not run stands in one list, with the reason.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.docs.pages import ROOT, Block, blocks, pages
from tests.docs.running import problem_of
from tests.docs.stage import open_stage

PAGES = {page: text for page, text in pages().items() if page != "CHANGELOG.md"}
RUN = {"sh", "python", "toml", "js", "ts"}
LOAD = "minutes of load; tests/system/loadtest/test_locust.py runs one like it, and shorter"

# (page, how the block begins): why it is not run here.
NOT_RUN = {
    (
        "README.md",
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[embedded]'",
    ): "installs; .ci/run does",
    ("README.md", "python3 -m venv .venv && .venv/bin/pip install -q -e '.[demo]'"): (
        "installs, and takes half a minute; tests/system/demo/test_demo.py runs it"
    ),
    ("README.md", "python3 -m venv .venv && .venv/bin/pip install -q -e '.[dev]'"): "all tests; .ci/run does",
    (
        "deploy/README.md",
        "for user in ADMIN SERVER",
    ): "tests/system/deploy/test_redis.py runs it on the file itself",
    ("loadtest/README.md", "locust -f loadtest/locustfile.py --headless --users 500"): LOAD,
    ("loadtest/README.md", "locust -f loadtest/swarm_user.py"): LOAD,
    ("loadtest/README.md", "locust -f loadtest/locustfile.py --headless --processes 4"): "other machines",
    ("loadtest/README.md", "presence serve --workers 6"): LOAD,
    ("presence/docs/followups.md", "from presence.followups import FollowUp, due_sync"): (
        "it has to do an hour after somebody went; tests/docs/test_followups.py lets that pass"
    ),
    (
        "protocol/clients/node/README.md",
        "npm ci",
    ): "tests/system/protocol/test_node.py builds and tests it",
    ("protocol/clients/node/README.md", "import { PresenceClient"): (
        "TypeScript; tests/system/protocol/test_node.py compiles and runs it"
    ),
}
# (page, how the program begins, or a line of it): what it prints once it has worked, for it runs for ever.
FOR_EVER = {
    ("README.md", "from presence.client import Delivered"): "bob is",
    ("README.md", "from presence.subscriber import Gap, Offline, subscribe_sync"): "push to zoe",
    ("presence/docs/apps.md", "from presence.client import Disconnected, PresenceChanged"): "bob is",
    (
        "presence/docs/subscribers.md",
        "from presence.subscriber import Gap, Offline, Online, subscribe",
    ): "zoe",
    ("presence/docs/subscribers.md", "places = {}"): "Online",
    ("presence/docs/subscribers.md", "for event in follow_sync("): "1 online",
    ("presence/docs/subscribers.md", 'sqlite3.connect("users.db")'): "zoe is in the table",
    ("presence/docs/subscribers.md", 'sqlite3.connect("visits.db")'): "zoe was here for",
}
# (page, a line of the program): all that it prints, without the times at the ends of lines.
PRINTED: dict[tuple[str, str], list[str]] = {
    ("presence/docs/apps.md", "socket.create_connection"): [
        "[64, 1]",
        "offline",
        "recipient_offline",
        "[64, 4]",
        "[64, 5]",
    ],
    ("presence/docs/apps.md", "send a push notification"): [
        "eve is not there: keep it, or send a push notification",
        "handed to 1 of bob",
        "ann says hello",
    ],
    ("presence/docs/apps.md", "ca.pem"): ["bob is offline"],
    ("presence/docs/apps.md", '"status": "at lunch"'): ["away at lunch"],
    ("presence/docs/apps.md", "within a second"): [
        "bob offline",
        "eve offline",
        "nobody came or went within a second",
    ],
    ("presence/docs/timers.md", "open_timer_service()"): ["first"],
    ("presence/docs/timers.md", '"queue", "mails"'): ["mail to ann"],
    ("presence/docs/timers.md", '"ring", "reminders"'): ["reminded 1000"],
    ("presence/docs/timers.md", '"expiry", "orders"'): ["lapsed order-7 2 tickets"],
    ("presence/docs/timers.md", "RedisWheel("): ["came online: True", "went offline: ann"],
}


def entry_of(block: Block, table: Mapping[tuple[str, str], object]) -> tuple[str, str] | None:
    """Return the key of a table that a block is meant by."""
    for key in table:
        if key[0] == block.page and key[1] in block.text:
            return key
    return None


def all_blocks() -> list[Block]:
    return [block for page, text in PAGES.items() for block in blocks(page, text)]


def page_of(page: str) -> ParameterSet:
    """Return a page as a parameter, with the programs that it takes for granted and pip does not bring."""
    shown = "".join(block.text for block in blocks(page, PAGES[page]))
    needed = [name for name in ("redis-cli", "curl") if re.search(rf"^{name} ", shown, re.MULTILINE)]
    return pytest.param(page, marks=[pytest.mark.needs(name) for name in needed])


@pytest.mark.parametrize(
    "page", [page_of(page) for page in PAGES if any(b.page == page for b in all_blocks())]
)
def test_every_snippet_runs(page: str, tmp_path: Path) -> None:
    mine = [block for block in all_blocks() if block.page == page and block.language in RUN]
    due = [block for block in mine if entry_of(block, NOT_RUN) is None]
    if not due:
        return
    is_live = any(entry_of(block, FOR_EVER) for block in due)
    with open_stage(tmp_path / "stage", "".join(block.text for block in due), is_live=is_live) as stage:
        for block in due:
            endless, ending = entry_of(block, FOR_EVER), entry_of(block, PRINTED)
            problem = problem_of(
                block,
                stage,
                FOR_EVER[endless] if endless else None,
                PRINTED[ending] if ending else None,
            )
            assert problem is None, f"{block}: {problem}"


@pytest.mark.parametrize("table", [NOT_RUN, FOR_EVER, PRINTED], ids=["not run", "for ever", "printed"])
def test_no_entry_of_a_list_is_stale(table: Mapping[tuple[str, str], object]) -> None:
    met = [entry_of(block, table) for block in all_blocks() if block.language in RUN]
    assert [key for key in table if met.count(key) != 1] == []


def test_what_runs_elsewhere_runs_there() -> None:
    for reason in NOT_RUN.values():
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
