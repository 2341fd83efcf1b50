"""The page on follow-ups: its rules load, its programs run, and what it names is there."""

import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import presence
from presence.config import load
from presence.embedded import EmbeddedRedis, embedded_redis
from presence.followups.turning import Turner
from presence.rules import AFTER_MAX_S, PAYLOAD_BYTES_MAX
from presence.store.client import open_client
from presence.store.followup_keys import PENDING_MAX, PENDING_OF_USER_MAX, TOLD_A_TURN
from tests.followups.shards import Shard

PAGE = (Path(presence.__file__).parent / "docs" / "followups.md").read_text(encoding="utf-8")
DEADLINE_S = 20.0


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.+?)```", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def says(code: str, url: str) -> Generator[str, None, None]:
    """Give the lines that a program prints, which is ended when nobody wants any more."""
    code = code.replace("redis://localhost:6379", url)
    program = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(DEADLINE_S, program.kill)
    timer.start()
    try:
        assert program.stdout is not None
        yield from (line.rstrip() for line in program.stdout)
    finally:
        timer.cancel()
        program.kill()
        program.communicate()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[EmbeddedRedis]:
    with embedded_redis() as server:
        yield server


def test_its_rules_load_and_its_programs_run(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    config = tmp_path / "presence.toml"
    config.write_text(block("rules"))
    rules = load({"config": str(config)}, {}).settings.followups
    assert rules is not None
    assert [rule.name for rule in rules] == ["we-miss-you", "reassign"]
    with open_client(redis_server.url) as client, closing(Turner(redis_server.url, rules=rules)) as turner:
        shard = Shard(client, redis_server.url, rules)
        turner.turn()
        shard.goes("ann")
        turner._due.clear()
        turner.turn()
        one = says(block("one"), redis_server.url)
        assert next(one).startswith("cart:ann:17 1")
        assert "name='we-miss-you'" in next(one)
        one.close()
        shard.pass_time(3_600_000 + 1)
        turner._due.clear()
        turner.turn()
        reader = says(block("reader"), redis_server.url)
        assert next(reader) == "mail to ann mail template 7"
        reader.close()


def test_the_handler_can_be_called() -> None:
    names: dict[str, object] = {}
    exec(block("handler"), names)  # it is ours
    assert callable(names["handle"])


def test_its_figures_are_those_of_the_code() -> None:
    assert f"{PENDING_MAX:,} that wait" in PAGE
    assert f"may\nhave {PENDING_OF_USER_MAX}." in PAGE
    assert f"{TOLD_A_TURN} of a shard in a call" in PAGE
    assert PAYLOAD_BYTES_MAX == 4096
    assert AFTER_MAX_S > 365 * 86_400
