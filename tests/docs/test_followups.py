"""The program on the page of follow-ups that waits for an hour to pass: here it passes at once."""

import re
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

from presence.config import load
from presence.embedded import EmbeddedRedis
from presence.followups.turning import Turner
from presence.store.client import open_client
from tests.docs.pages import ROOT
from tests.followups.shards import Shard

PAGE = (ROOT / "presence" / "docs" / "followups.md").read_text("utf-8")
DEADLINE_S = 20.0


def block(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.+?)```", PAGE, re.DOTALL)
    assert found, name
    return found[1]


def test_the_reader_is_told_of_who_was_gone_for_an_hour(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    config = tmp_path / "presence.toml"
    config.write_text(block("rules"))
    rules = load({"config": str(config)}, {}).settings.followups
    assert rules is not None
    assert [rule.name for rule in rules] == ["we-miss-you", "reassign"]
    with open_client(redis_server.url) as client, closing(Turner(redis_server.url, rules=rules)) as turner:
        shard = Shard(client, redis_server.url, rules)
        turner.turn()
        shard.goes("ann")
        for passed_ms in (0, 3_600_000 + 1):
            shard.pass_time(passed_ms)
            turner._due.clear()
            turner.turn()
    code = block("reader").replace("redis://localhost:6379", redis_server.url)
    program = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(DEADLINE_S, program.kill)
    timer.start()
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "mail to ann mail template 7\n"
    finally:
        timer.cancel()
        program.kill()
        program.communicate()
