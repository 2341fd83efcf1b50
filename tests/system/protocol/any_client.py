"""What a client in any language does with real servers: `test_node.py` and `test_java.py` run these tests."""

from pathlib import Path

import pytest
import trio

from loadtest.servers import free_port
from presence.store.embedded import EmbeddedRedis
from tests.support.credentials import token
from tests.support.events import read_events
from tests.support.preloaded import PreloadedServer
from tests.support.server_process import running_server
from tests.support.waiting import wait_for
from tests.system.protocol.device import ClientProgram
from tests.transports import certificates
from tests.transports.harness import Harness

# Time in which a server starts again, however busy the machine, before its users are reported offline.
FLAGS = ("--idle-timeout", "60", "--disconnect-grace", "60")
RETURN_TIMEOUT_S = 90.0  # the longest pause of a client, after a start of the server that took long
HOST = f"tls://{certificates.HOST}"


def what_a_user_hides_is_hidden_from_it(program: ClientProgram, redis_server: EmbeddedRedis) -> None:
    hidden = {"sinceMs": None, "lastSeenMs": None, "id": None, "reason": None}
    with (
        running_server("--redis", redis_server.url, *FLAGS) as server,
        program.device(server.address, "ann") as ann,
        program.device(server.address, "bob") as bob,
    ):
        for device in (ann, bob):
            device.told("connected", again=False)
        ann.sees("bob")
        ann.ask("watch", ["bob"])
        bob.ask("update", {"hide": ["last_seen"]})
        assert hidden.items() <= ann.told("presence", uid="bob", reason="updated")["state"].items()
        bob.ask("update", {"status": "invisible", "scope": "user"})
        ann.told("presence", uid="bob", status="offline", reason="logout")
        assert hidden.items() <= ann.ask("query", ["bob"])["bob"].items()
        assert ann.ask("message", "bob", "hi")["error"] == "RecipientOffline"
        bob.ask("update", {"status": "online", "scope": "user", "hide": []})
        assert ann.told("presence", uid="bob", status="online")["state"]["sinceMs"]


def it_watches_rooms_again_after_a_restart(program: ClientProgram, redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, *FLAGS, "--rooms", "open", "--max-listed-members", "2")
    server = PreloadedServer(*flags, port=free_port())
    with (
        program.device(server.address, "ann") as ann,
        program.device(server.address, "bob") as bob,
        program.device(server.address, "eve") as eve,
    ):
        for device in (ann, bob, eve):
            device.told("connected", again=False)
        bob.ask("update", {"rooms": ["lobby"]})
        shown = {"lobby": {"count": 1, "members": ["bob"]}}
        wait_for(lambda: ann.ask("queryRooms", ["lobby"]) == shown)
        assert ann.ask("watchRooms", ["lobby", "hall"]) == {**shown, "hall": {"count": 0, "members": []}}

        eve.ask("update", {"join": ["lobby"]})
        assert ann.told("room", room="lobby", joined=["eve"])["state"] == {
            "count": 2,
            "members": ["bob", "eve"],
        }
        ann.ask("update", {"join": ["lobby"]})
        assert ann.told("room", count=3)["state"]["members"] is None

        server.process.kill()
        server.stop()
        server = PreloadedServer(*flags, port=server.address[1])
        for device in (ann, bob, eve):
            device.told("connected", again=True, within_s=RETURN_TIMEOUT_S)
        assert eve.close() == 0
        assert sorted(ann.told("room", count=2)["state"]["members"]) == ["ann", "bob"]
        assert ann.ask("unwatchRooms", ["lobby"]) is None
        assert bob.close() == 0
        ann.ask("update", {"rooms": ["hall"]})
        assert ann.told("room", room="hall")["joined"] == ["ann"]
        assert ann.close() == 0
    assert server.stop() == 0
    assert [(line["room"], line["state"]["count"]) for line in ann.lines if line.get("event") == "room"] == [
        ("lobby", 2),
        ("lobby", 3),
        ("lobby", 2),
        ("hall", 1),
    ]


@pytest.mark.parametrize("how", ["stop", "kill"])
def a_session_with_real_servers(how: str, program: ClientProgram, redis_server: EmbeddedRedis) -> None:
    flags = ("--redis", redis_server.url, *FLAGS)
    server = PreloadedServer(*flags, port=free_port())
    with (
        running_server(*flags) as other_server,
        program.device(server.address, "ann") as ann,
        program.device(server.address, "carl") as carl,
        program.device(other_server.address, "bob") as bob,
    ):
        for device in (ann, carl, bob):
            device.told("connected", again=False)
        ann.sees("bob", "carl")
        states = ann.ask("watch", ["bob", "carl", "eve"])
        statuses = {uid: state["status"] for uid, state in states.items()}
        assert statuses == {"bob": "online", "carl": "online", "eve": "offline"}
        assert ann.ask("query", ["bob"]) == {"bob": states["bob"]}

        body = {"text": "hi", "numbers": [1, 2.5, None]}
        assert ann.ask("message", "bob", body) == 1
        message = bob.told("message")
        assert (message["sender"], message["body"]) == ("ann", body)
        assert ann.ask("message", "eve", "hi")["error"] == "RecipientOffline"

        bob.ask("away")
        assert ann.told("presence", uid="bob")["state"]["status"] == "away"
        bob.ask("update", {"meta": {"text": "at lunch"}})
        assert ann.told("presence", uid="bob", reason="updated")["state"]["meta"] == {"text": "at lunch"}

        if how == "kill":
            server.process.kill()
        server.stop()
        ann.told("disconnected")
        assert bob.ask("logout", "background") is None
        server = PreloadedServer(*flags, port=server.address[1])
        for device in (ann, carl):
            device.told("connected", again=True, within_s=RETURN_TIMEOUT_S)
        gone = ann.told("presence", uid="bob")
        assert (gone["reason"], gone["state"]["status"]) == ("meanwhile", "offline")
        assert gone["state"]["lastSeenMs"] is not None

        assert carl.ask("message", "ann", "still there?") == 1
        assert ann.told("message", body="still there?")["sender"] == "carl"
        assert carl.close() == 0
        assert ann.told("presence", uid="carl")["reason"] == "logout"
        assert ann.ask("logout") is None
        assert ann.told("end")["error"] is None
        assert ann.close() == 0

    shown = [(line["uid"], line["reason"]) for line in ann.lines if line.get("event") == "presence"]
    assert shown == [("bob", "away"), ("bob", "updated"), ("bob", "meanwhile"), ("carl", "logout")]
    assert server.stop() == 0  # which has then told Redis everything
    events = [(event["uid"], event["reason"]) for event in read_events(redis_server.url)]
    assert [reason for uid, reason in events if uid == "ann"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "carl"] == ["login", "logout"]
    assert [reason for uid, reason in events if uid == "bob"] == ["login", "away", "updated", "background"]


async def it_logs_in_with_a_token_over_tls(program: ClientProgram, secured: Harness, tmp_path: Path) -> None:
    authority, file = tmp_path / "authority.pem", tmp_path / "token"
    certificates.authority().cert_pem.write_to_path(str(authority))
    file.write_text(f"{token('ann')}\n")
    address = (HOST, secured.address[1])
    trust = {program.authority: str(authority)}

    def live() -> tuple[object, ...]:
        with program.device(address, "ann", "phone", f"@{file}", **trust) as ann:
            ann.told("connected")
            answers = ann.ask("query", ["bob"])["error"], ann.close()
        with program.device(address, "eve", "phone", f"@{file}", **trust) as eve:
            reasons = [eve.told("disconnected")["reason"] for _ in range(2)]
        with program.device(address, "ann") as wary:
            reasons.append(wary.told("disconnected")["reason"])
        elsewhere = ("tls://127.0.0.1", secured.address[1])
        with program.device(elsewhere, "ann", "phone", f"@{file}", **trust) as deceived:
            reasons.append(deceived.told("disconnected")["reason"])
        return *answers, *reasons

    assert await trio.to_thread.run_sync(live) == (
        *("Unsupported", 0),  # this server serves no queries
        *("auth_failed", "no_token"),  # of another user's token; the file has no other
        "unreachable",  # to a client that does not trust its certificate
        "unreachable",  # nor by a name that the certificate does not have
    )
    assert secured.history() == [("login", "ann", "login"), ("end", "ann", "logout")]
