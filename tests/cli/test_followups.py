"""``presence followups``: adding, listing and cancelling; running the scheduler and a handler."""

import json
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from presence.cli import followups, job_loop
from presence.followups.run_scheduler import FollowUpScheduler
from presence.store.embedded import EmbeddedRedis
from presence.store.redis_client import Redis
from tests.cli.conftest import Command
from tests.followups.shards import Shard
from tests.support.waiting import wait_for

pytestmark = pytest.mark.usefixtures("clean_environment")
HANDLER = """
def handle(followup):
    print(followup.name, followup.uid, followup.payload, followup.deliveries, flush=True)
    if followup.uid == "bad" and followup.deliveries == 1:
        raise ValueError("not this time")
"""
DEADLINE_S = 20.0


def test_added_follow_ups_are_listed_and_cancelled(
    redis_server: EmbeddedRedis, command: Command, client: Redis
) -> None:
    shard = Shard(client, redis_server.url)
    shard.come_online("bob")
    first = command("followups", "add", "ann", "--after", "60", "--name", "cart", "--payload", "17").out
    second = command("followups", "add", "bob", "--after", "1", "--name", "cart").out
    assert "once offline" in second
    rows = [json.loads(line) for line in command("followups", "list", "--json").out.splitlines()]
    listed = [(row["uid"], row["name"], row["payload"]) for row in rows]
    assert listed == [("ann", "cart", "17"), ("bob", "cart", "")]
    (line,) = command("followups", "list", "--uid", "bob").out.splitlines()
    assert line.endswith(second.split()[0])
    assert command("followups", "cancel", first.split()[0], "--uid", "bob") == (0, "cancelled: 2\n", "")
    status, _, complaint = command("followups", "cancel", first.split()[0])
    assert (status, "no pending follow-up cart:ann:" in complaint) == (1, True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["add", "ann", "--after", "1", "--name", "a:b"], "name must be"),
        (["add", "ann", "--after", "-1", "--name", "a"], "'-1' is not a number of seconds"),
        (["cancel", "ann"], "'ann' is not the id of a follow-up"),
        (["cancel"], "give at least one ID"),
        (["list", "--limit", "0"], "'0' is not a whole number"),
        (["run", "--handler", "nowhere"], "must be module:function"),
        (["run", "--handler", "asyncio:sleep"], "must be a plain function"),
        (["run", "--retry", "0"], "'0' is not a time"),
        (["run", "--after", "now"], "'now' is not an entry id"),
    ],
)
def test_invalid_arguments_are_a_usage_error(command: Command, words: list[str], complaint: str) -> None:
    result = command("followups", *words)
    assert result.status == 2
    assert complaint in result.err


@pytest.mark.parametrize(
    ("words", "handled"),
    [([], ["old", "new"]), (["--after", "1-0"], ["new"]), (["--after", "new"], ["new"])],
    ids=["by default", "after an id", "new ones"],
)
def test_a_new_group_begins_where_it_is_told(
    redis_server: EmbeddedRedis, client: Redis, tmp_path: Path, words: list[str], handled: list[str]
) -> None:
    (tmp_path / "its_handler.py").write_text(HANDLER)
    key = Shard(client, redis_server.url).keys.followups(0)

    def deliver(uid: str, entry_id: str) -> None:
        texts = dict.fromkeys(("id", "name", "payload", "reason", "offline_id"), "x")
        times = dict.fromkeys(("code", "offline_at_ms", "last_seen_ms", "due_ms", "at_ms"), 1)
        fields: dict[Any, Any] = {**texts, **times, "uid": uid}
        client.xadd(key, fields, id=entry_id)

    deliver("old", "1-0")
    words = ["--handler", "its_handler:handle", *words]
    process = subprocess.Popen(
        [sys.executable, "-m", "presence", "followups", "run", *words, "--redis", redis_server.url],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: client.xinfo_groups(key))
        deliver("new", "2-0")
        assert process.stdout is not None
        assert [process.stdout.readline().split()[1] for _ in handled] == handled
    finally:
        process.kill()
        process.communicate()


def test_run_plans_by_the_rules_of_the_file_and_retries_the_handler(
    redis_server: EmbeddedRedis, client: Redis, tmp_path: Path
) -> None:
    (tmp_path / "its_handler.py").write_text(HANDLER)
    (tmp_path / "presence.toml").write_text('[[followups]]\nname = "mail"\nafter = 0.1\npayload = "p"\n')
    shard = Shard(client, redis_server.url)
    words = ["--config", "presence.toml", "--handler", "its_handler:handle", "--retry", "0.1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "presence", "followups", "run", *words, "--redis", redis_server.url],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        assert process.stderr.readline() == "presence: followups: running\n"
        shard.go_offline("good")
        shard.go_offline("bad")
        assert {process.stdout.readline() for _ in range(2)} == {"mail good p 1\n", "mail bad p 1\n"}
        assert process.stdout.readline() == "mail bad p 2\n"
        assert "handler failed with mail:bad:" in process.stderr.readline()
        deadline = time.monotonic() + DEADLINE_S
        while client.xpending(shard.keys.followups(0), "followups")["pending"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert process.communicate() == ("", "")
    finally:
        process.kill()
        process.communicate()


def test_a_scheduler_beside_a_handler_survives_a_lack_of_memory(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job_loop, "RETRY_MAX_S", 0.01)
    runs = 0

    def run_once() -> float:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise MemoryError
        return 0.01

    with closing(FollowUpScheduler(redis_server.url, "presence", None)) as scheduler:
        monkeypatch.setattr(scheduler, "run_once", run_once)
        with followups._scheduler_thread(scheduler):
            assert wait_for(lambda: runs > 3, DEADLINE_S)
    assert capsys.readouterr().err.splitlines() == [
        "presence: follow-up scheduler failed: out of memory: more memory is needed",
        "presence: follow-ups resumed",
    ]
