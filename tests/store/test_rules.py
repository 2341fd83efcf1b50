"""The effect of node changes on a shard: each rule is a row, run on a real server."""

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest

from presence.core.event_facts import LoginFacts
from presence.core.profiles import Profile
from presence.outbox.event_counts import Transitions
from presence.outbox.replies import NodeNoticeKind, ReplyStatus
from presence.store.keys import Keys
from presence.store.records import offline_state, online_state
from presence.store.redis_store import RedisStore
from presence.store.script_arguments import Shape
from presence.store.watch_reads import read_snapshot
from presence.watching.user_states import OFFLINE, WatchedState, read_entry
from tests.store.driving import (
    Hand,
    brief_events,
    check_alternation,
    end,
    events,
    login,
    online_sessions,
    owned,
    play,
    probed,
    rows,
    written,
)
from tests.store.servers import Server

NODES = ("a", "b", "c")
DEVICES = ('"', "\\", 'a","b', "é\u2028", "%d", "x" * 64)

# A row is the rule, the steps of the nodes, and the outcome.
#
# Steps: ``a login u s1 phone age=5 & end u s2`` is a batch of `a`, whose login of the session s1
# of u on the device phone is 5 s old. ``as=away,m``: its state, with m as its meta. ``hides=+i-l``: what
# its user hides from now on and no more. ``knows=i``: what its user hides, as its node knows. ``anew``: a
# node begins its second generation. ``b is fenced``, ``swept``: by `c`. ``a becomes b``: it has that id now.
#
# Outcome: the events -> the sessions on record -> the sessions that yield but may return.
RULES = """
# One node
a second device is no event
    a login u s1 phone & login u s2 desk
    online u login -> u/desk/s2 u/phone/s1
a user stays online until the last device ends
    a login u s1 phone & login u s2 desk & end u s1 phone
    online u login -> u/desk/s2
the end of a replaced session does nothing
    a login u s1 & login u s2 & end u s1
    online u login -> u//s2
the end of an unknown user does nothing
    a end u s1
    ->
items of one user in a batch see each other
    a login u s1 & end u s1 & login u s2 & login u s3 tv & end u s2
    online u login; offline u logout; online u login -> u/tv/s3
the last change of a user in a batch wins
    a login u s1; a end u s1 & login u s2 & end u s2
    online u login; offline u logout; online u login; offline u logout ->
# Sessions of other nodes
a login replaces another node's session
    a login u sa; b login u sb
    online u login -> u//sb
a late login yields to a younger one
    b login u sb; a login u sa age=1.5
    online u login -> u//sb -> sa
a late login replaces an older one
    b login u sb age=60; a login u sa age=50
    online u login -> u//sa
a login that is hardly late does not yield
    b login u sb; a login u sa age=0.9
    online u login -> u//sa
a late login replaces its own node's session
    a login u s1 & login u s2 age=60
    online u login -> u//s2
a registration yields to another node's session
    b login u sb age=60; a register u sa
    online u login -> u//sb -> sa
a registration replaces a fenced node's session
    b login u sb; b is fenced; a register u sa
    online u login -> u//sa
a registration replaces that of an older generation
    a login u s1; a anew; a register u s2
    online u login -> u//s2
a registration of an unknown user is a return
    a register u s1
    online u returned -> u//s1
the end of a moved session does not affect the new one
    a login u sa; b login u sb; a end u sa code=300
    online u login -> u//sb
an end counts, no matter which node owns the session
    a login u s1; b register u s1; a end u s1
    online u login; offline u logout ->
# After Redis went back, the session that is certainly younger stays
reclaimed, 20.0 s beside 3.0 s
    a register u old age=20; b reclaim u new age=3
    online u returned -> u//new
reclaimed, 20.0 s beside 14.0 s
    a register u old age=20; b reclaim u new age=14
    online u returned -> u//new
reclaimed, 20.0 s beside 16.0 s
    a register u old age=20; b reclaim u new age=16
    online u returned -> u//old -> new
reclaimed, 3.0 s beside 20.0 s
    a register u old age=3; b reclaim u new age=20
    online u returned -> u//old -> new
reclaimed, 400.0 s beside 385.0 s
    a register u old age=400; b reclaim u new age=385
    online u returned -> u//old -> new
# Ends that restore
a restoring end of an online user writes no event
    a login u s2; a restoring end u s1
    online u login -> u//s2
a restoring end of a session on record is an end
    a login u s1; a restoring end u s1
    online u login; offline u logout ->
# What older generations and dead nodes own
a retirement ends what older generations own
    a login u s1 & login w s2; a anew; a register w s2; a retires
    online u login; online w login; offline u node_down -> w//s2
a sweep skips users who returned on another node
    a login u s1; a is fenced; b login u s3; a is swept
    online u login -> u//s3
a node with a new id keeps its users
    a login u s1; a is fenced; a becomes b; b register u s1; a is swept
    online u login -> u//s1
a second device keeps the user online through a sweep
    a login u s1 phone; b login u s2 desk; a is fenced; a is swept
    online u login -> u/desk/s2
# Pending logins: held back behind queued ends
a pending login writes no event
    a hold u s1
    ->
by its node the end of the last session hands over to a pending login
    b login u sb phone; a hold u sa desk age=5; b end u sb phone age=1
    online u login -> u/desk/sa
by a retirement the end of the last session hands over to a pending login
    b login u sb phone; a hold u sa desk age=5; b anew; b retires
    online u login -> u/desk/sa
by a sweep the end of the last session hands over to a pending login
    b login u sb phone; a hold u sa desk age=5; b is fenced; b is swept
    online u login -> u/desk/sa
a session that was a pending login ends normally
    b login u sb phone; a hold u sa desk age=5; b end u sb phone age=1;
    a end u before tv & login u sa desk age=5 & end u sa desk
    online u login; offline u logout ->
a pending login continues a period that Redis lost
    a hold u sa desk age=5; b restoring end u sb phone age=1
    online u returned -> u/desk/sa
an end before the pending login makes the user offline
    b login u sb phone; a hold u sa desk age=2; b end u sb phone age=5; a login u sa desk age=2
    online u login; offline u logout; online u login -> u/desk/sa
a node's own pending login does not delay its ends
    a login u s1; a hold u s2 age=1; a end u s1 age=2 & login u s2 age=1
    online u login; offline u logout; online u login -> u//s2
the pending logins of a fenced node, which may not know yet, count
    b login u sb phone; a hold u sa desk age=5; a is fenced; b end u sb phone age=1
    online u login -> u/desk/sa
a pending login of a fenced node that is later than the session of its device counts
    b login u sb desk age=5; a hold u sa desk age=3; a is fenced; b end u sb desk age=1
    online u login -> u/desk/sa
a pending login of a fenced node that is older than the session of its device does not count
    a hold u sa desk age=5; a is fenced; b login u sb desk age=3; b end u sb desk age=1
    online u login; offline u logout ->
a session that was the pending login of a fenced node ends with the sweep of the node
    b login u sb phone; a hold u sa desk age=5; a is fenced; b end u sb phone age=1; a is swept
    online u login; offline u node_down ->
the pending logins of a node that was swept do not count
    b login u sb phone; a hold u sa desk age=5; a is fenced; a is swept; b end u sb phone age=1
    online u login; offline u logout ->
the pending logins of the id that a node had before do not count
    c login u sc phone; a hold u sa desk age=5; a becomes b; c end u sc phone age=1
    online u login; offline u logout ->
the pending logins of a fenced id do not count when its node has another id
    c login u sc phone; a hold u sa desk age=5; a is fenced; a becomes b; c end u sc phone age=1
    online u login; offline u logout ->
# States of users
a user is away only if all devices are
    a login u s1 phone & login u s2 desk & update u s1 phone as=away; a update u s2 desk as=away;
    a update u s1 phone
    online u login; away u away away; away u back online -> u/desk/s2 u/phone/s1
busy outranks online on another device, and do not disturb outranks busy
    a login u s1 phone as=busy & login u s2 desk; b login u s3 tv as=dnd
    online u login busy; update u updated dnd -> u/phone/s1 u/desk/s2 u/tv/s3
online outranks away on another device
    a login u s1 phone as=away & login u s2 desk as=busy; a update u s2 desk; a end u s2 desk
    online u login away; away u back busy; update u updated online; away u away away -> u/phone/s1
who is away comes back as busy
    a login u s1 as=away & update u s1 as=busy & update u s1 as=away
    online u login away; away u back busy; away u away away -> u//s1
who becomes invisible, and visible again
    a login u s1 & update u s1 as=invisible & update u s1
    online u login; update u updated online invisible; update u updated online -> u//s1
one invisible device is enough
    a login u s1 phone & login u s2 desk as=invisible; a update u s1 phone as=dnd; a end u s2 desk
    online u login; update u updated online invisible; update u updated dnd -> u/phone/s1
who comes as invisible is shown as before
    a login u s1 & end u s1; a login u s2 as=invisible & update u s2 as=invisible,m
    online u login; offline u logout; online u login invisible; update u updated online m invisible -> u//s2
until the end
    a login u s1 as=invisible,m; a end u s1; a login u s2 as=invisible; a end u s2
    online u login m invisible; offline u logout m invisible
    …; online u login invisible; offline u logout invisible ->
and after it
    a login u s1 & update u s1 as=invisible & end u s1; a login u s2 as=invisible
    online u login; update u updated online invisible; offline u logout invisible
    …; online u login invisible -> u//s2
who was never seen comes as invisible, and becomes visible
    a login u s1 as=invisible & update u s1 as=away
    online u login invisible; update u updated away -> u//s1
who was never seen comes as invisible, and leaves
    a login u s1 as=invisible & end u s1
    online u login invisible; offline u logout invisible ->
an invisible user of a node that dies
    a login u s1; a end u s1; a login u s2 as=invisible; a is fenced; a is swept
    online u login; offline u logout; online u login invisible; offline u node_down invisible ->
a visible user of a node that dies has an invisible login elsewhere
    b login u sb phone; a hold u sa desk age=5 as=invisible; b end u sb phone age=1;
    a login u sa desk age=5 as=invisible
    online u login; update u updated online invisible -> u/desk/sa
an invisible user is it without the session that did it
    a login u s1 phone & update u s1 phone hides=+i & login u s2 desk as=busy & end u s1 phone &
    update u s2 desk as=dnd
    online u login; update u updated online invisible -> u/desk/s2
until another session takes it back
    a login u s1 phone & update u s1 phone hides=+i; b login u s2 desk as=busy; a end u s1 phone;
    b update u s2 desk as=dnd hides=-i
    online u login; update u updated online invisible; update u updated dnd -> u/desk/s2
each session has its own status again
    a login u s1 phone as=away & update u s1 phone as=away hides=+i & login u s2 desk & end u s2 desk
    & update u s1 phone as=away hides=-i
    online u login away; update u updated online invisible; update u updated away -> u/phone/s1
an invisible user who was away and is back is away
    a login u s1 as=away & update u s1 as=away hides=+i & end u s1; b login u s2 &
    update u s2 as=away hides=-i
    online u login away; update u updated online invisible; offline u logout invisible
    …; online u login invisible
    …; update u updated away -> u//s2
a session that is invisible by itself hides a user who is not
    a login u s1 phone as=invisible & login u s2 desk & update u s2 desk hides=+i & update u s2 desk hides=-i
    online u login invisible -> u/desk/s2 u/phone/s1
an invisible user who was offline comes back invisible, and is visible as after a login
    a login u s1 & update u s1 hides=+i & end u s1; b login u s2; b end u s2 & login u s3;
    b update u s3 hides=-i
    online u login; update u updated online invisible; offline u logout invisible; online u login invisible
    …; offline u logout invisible; online u login invisible; update u updated online -> u//s3
and visible when it was taken back before the end
    a login u s1 & update u s1 hides=+i & update u s1 hides=-i & end u s1; b login u s2
    online u login; update u updated online invisible; update u updated online; offline u logout
    …; online u login -> u//s2
a login may hide the user from the start
    a login u s1 knows=i & end u s1; a login u s2
    online u login invisible; offline u logout invisible; online u login invisible -> u//s2
a registration hides the user of whom Redis has lost it
    a login u s1; a reclaim u s1 knows=i
    online u login; update u updated online invisible -> u//s1
and takes nothing back
    a login u s1 phone & update u s1 phone hides=+i & login u s2 desk; a register u s2 desk &
    register u s1 phone
    online u login; update u updated online invisible -> u/desk/s2 u/phone/s1
an invisible user of a node that dies comes back invisible
    a login u s1 & update u s1 hides=+i; a is fenced; a is swept; b login u s2
    online u login; update u updated online invisible; offline u node_down invisible
    …; online u login invisible -> u//s2
an invisible user has a pending login elsewhere
    b login u sb phone & update u sb phone hides=+i; a hold u sa desk age=5; b end u sb phone age=1;
    a login u sa desk age=5
    online u login; update u updated online invisible -> u/desk/sa
a lost period of an invisible user
    a login u s1 & update u s1 hides=+i & end u s1; a restoring end u s2
    online u login; update u updated online invisible; offline u logout invisible
    …; online u returned invisible; offline u logout invisible ->
a user hides when they were active
    a login u s1 & update u s1 hides=+l & end u s1; b login u s2 & update u s2 hides=-l & end u s2
    online u login; update u updated online hides; offline u logout hides; online u login hides
    …; update u updated online
    …; offline u logout ->
all events of such a user say so
    a login u s1 knows=l & update u s1 as=away & update u s1 as=busy & end u s1
    online u login hides; away u away away hides; away u back busy hides; offline u logout hides ->
who hides that and becomes invisible is shown like one never seen
    a login u s1 knows=l & update u s1 hides=+i & end u s1; a login u s2
    online u login hides; update u updated online invisible hides; offline u logout invisible hides
    …; online u login invisible hides -> u//s2
also who comes back as invisible
    a login u s1 knows=l & end u s1; a login u s2 as=invisible
    online u login hides; offline u logout hides; online u login invisible hides -> u//s2
what is private is in the entries of its session
    a login u s1 private=p & update u s1 private=q & end u s1
    online u login {p}; update u updated online {q}; offline u logout {q} ->
an update that changes only what is private is an update
    a login u s1 as=m private=p & update u s1 as=m private=p & update u s1 as=m
    online u login m {p}; update u updated online m -> u//s1
the session that ends last says what it said
    a login u s1 phone as=m & login u s2 desk private=p; a end u s1 phone; a end u s2 desk
    online u login m; update u updated online {p}; offline u logout {p} ->
a sweep says what the session said
    a login u s1 as=m private=p; a is fenced; a is swept
    online u login m {p}; offline u node_down m {p} ->
an update of a replaced session does nothing
    a login u s1 & login u s2 & update u s1 as=away
    online u login -> u//s2
an update that changes nothing is no event
    a login u s1 as=away & update u s1 as=away & update w s2
    online u login away -> u//s1
the end of an away user is a normal end
    a login u s1 & update u s1 as=away,m & end u s1
    online u login; away u away away m; offline u logout m ->
a login may set meta
    a login u s1 as=m
    online u login m -> u//s1
a login that is away writes online and away
    a register u s1 as=away,m
    online u returned away m -> u//s1
removed meta is an update without it
    a login u s1 as=m & update u s1
    online u login m; update u updated online -> u//s1
a registration restores lost state
    a login u s1; a anew; a register u s1 as=away,m
    online u login; away u away away m -> u//s1
meta is that of the latest login among those that are not away
    a login u s1 a age=9 as=one & login u s2 b age=8 as=two; b login u s3 c age=8.5 as=three;
    a update u s2 b as=away,two
    online u login one; update u updated online two; update u updated online three -> u/a/s1 u/b/s2 u/c/s3
between registrations of the same time the later device by bytes decides
    a register u sa a as=a & register u sB B as=B & register u sé é as=é & register u saa aa as=aa
    online u returned a; update u updated online é -> u/B/sB u/a/sa u/aa/saa u/é/sé
the state of a replaced session ends with it
    a login u s1 age=60 as=m; b login u s2
    online u login m; update u updated online -> u//s2
a sweep writes the remaining state
    a login u s1 phone as=away; b login u s2 desk; b is fenced; b is swept
    online u login away; away u back online; away u away away -> u/phone/s1
a pending login has the state of its later session
    b login u sb phone; a hold u sa desk age=5 as=away,m; b end u sb phone age=1;
    a login u sa desk age=5 as=away,m
    online u login; away u away away m -> u/desk/sa
of several pending logins of a device the last one counts, and the device comes once
    b login u sb phone; a hold u s1 desk age=5 as=dnd & hold u s2 desk age=4; b end u sb phone age=1
    online u login -> u/desk/s2
a pending login outranks the session that ends
    b login u sb phone as=away; a hold u s1 desk age=5 & hold u s2 desk age=4; b end u sb phone age=1
    online u login away; away u back online -> u/desk/s2
a lost period continued by a pending login has its state
    a hold u sa desk age=5 as=m; b restoring end u sb phone
    online u returned; update u updated online m -> u/desk/sa
"""

# Rows as above. The steps begin with the session limits of two nodes and which sessions end beyond them.
# Outcome: the sessions to end, as node and device, each in the inbox of its node.
LIMITS = """
as many as the limit
    2 2 oldest: a login u s1 1 age=3; a login u s2 2 age=2
    ->
the oldest ends
    2 2 oldest: a login u s1 1 age=3; a login u s2 2 age=2; b login u s9 9
    -> a1
the newest ends under that policy
    2 2 newest: a login u s1 1 age=3; a login u s2 2 age=2; b login u s9 9
    -> b9
a node is notified of its own sessions too
    1 1 oldest: a login u s1 1 age=2; a login u s2 2
    -> a1
all excess sessions end
    8 2 oldest: a login u s0 0 age=9 & login u s1 1 age=8 & login u s2 2 age=7 & login u s3 3 age=6;
    b login u s9 9
    -> a0 a1 a2
a replaced session does not count
    1 1 oldest: a login u s1 1 age=2; a login u new 1
    ->
of one node the later login in its outbox is the younger one, even if a slow call made the other look younger
    1 8 oldest: a login u s1 1; a login u s2 2 age=3
    -> a1
a session that the same call ends does not count
    1 8 oldest: a login u s1 1 age=2; a login u s2 2 age=1 & end u s1 1
    ->
registrations are limited like logins
    1 1 oldest: a register u s1 1 age=2; b register u s9 9 age=1
    -> a1
reclaimed sessions are limited too
    1 1 newest: a register u s1 1 age=2; b reclaim u s9 9 age=1
    -> b9
a session not registered in its node's new generation may have ended
    1 1 newest: a login u s1 1 age=2; a anew; b login u s9 9
    ->
it counts once it is registered again
    1 1 oldest: a login u s1 1 age=2; a anew; b login u s9 9; a register u s1 1 age=3
    -> a1
a fenced node is not notified
    1 1 oldest: a login u s1 1 age=2; a is fenced; b login u s9 9
    ->
sessions of a fenced node do not count
    1 1 newest: a login u s1 1 age=2; a is fenced; b login u s9 9
    ->
"""


@pytest.fixture
def server(emptied_server: Server) -> Server:
    return emptied_server


def line(event: dict[str, str]) -> str:
    words = [event.get(name, "").strip('"') for name in ("type", "uid", "reason", "status", "meta")]
    if "invisible" in event:
        words.append("invisible")
    if event.get("hide") == "last_seen":
        words.append("hides")
    if private := event.get("private"):
        words.append("{" + private.strip('"') + "}")
    return " ".join(word for word in words if word)


def watched(stream: Iterable[dict[str, str]], uid: str) -> WatchedState:
    """Return how a watcher sees a user after these events."""
    known = WatchedState(OFFLINE, devices=())
    for each in stream:
        event = read_entry(each["id"], each)
        if event is not None and event.uid == uid and not (event.is_hidden and known.status == OFFLINE):
            known = event.state
    return known


def shown_status(event: Mapping[str, str]) -> tuple[str, str, bool]:
    """Return the status after an event, since when, and whether it is hidden."""
    status_ms = event.get("status_ms", event["since_ms"])
    return event.get("status", "online"), status_ms, "invisible" in event


def shown(states: Mapping[str, WatchedState]) -> dict[str, dict[str, Any]]:
    return {uid: state.shown() for uid, state in states.items()}


def undated(states: Mapping[str, WatchedState]) -> dict[str, WatchedState]:
    """Return the states without the times of devices: a new session of the same device is no event."""
    return {
        uid: state._replace(devices=tuple(each._replace(since_ms=0) for each in state.devices or ()))
        for uid, state in states.items()
    }


def named(sessions: Iterable[tuple[str, ...]]) -> set[str]:
    return {"/".join(each) for each in sessions}


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(RULES))
def test_a_rule(store: RedisStore, server: Server, rule: str, steps: str, outcome: str) -> None:
    expected, on_record, *may_return = (part.strip() for part in f" {outcome} ".split("->"))
    online = set(on_record.split())
    hands, transitions, yielded = {name: Hand(store, name) for name in NODES}, Transitions(), list[str]()
    for hand in hands.values():
        hand.open()
    for step in steps.split("; "):
        reply = play(hands, step)
        assert reply.status is ReplyStatus.OK
        transitions.count_events(reply.event_counts)
        yielded += [each.session for each in reply.superseded if each.return_allowed]
    stream = events(server.client)
    assert "; ".join(map(line, stream)) == expected
    assert check_alternation(stream) == {each.split("/")[0] for each in online}
    assert transitions.report() == written(stream), "each event is counted with the answer of its call"
    assert named(online_sessions(server.client)) == online
    raw: Any = server.client.hgetall(Keys().online(0))
    for uid, text in raw.items():
        state, event = online_state(text), [each for each in stream if each["uid"] == uid.decode()][-1]
        assert state is not None
        assert (state["status"], state.get("meta")) == (event.get("status", "online"), event.get("meta"))
    seen: Any = server.client.zrange(Keys().seen(0), 0, -1, withscores=True)
    left: Any = server.client.hgetall(Keys().left(0))
    assert {uid.decode() for uid, _ in seen} == {event["uid"] for event in stream} - {
        uid.decode() for uid in raw
    }
    assert {uid for uid, _ in seen} == left.keys()
    for uid, score in seen:
        event = [each for each in stream if each["uid"] == uid.decode()][-1]
        state = offline_state(score, left[uid])
        names = {"since_ms": "at_ms", "last_seen_ms": "last_seen_ms", "reason": "reason", "id": "id"}
        assert {name: str(state[name]) for name in names} == {a: event[b] for a, b in names.items()}
    assert named(set().union(*(owned(server.client, name) for name in NODES))) == online
    assert yielded == may_return
    uids = [*{event["uid"]: None for event in stream if "uid" in event}]
    queried = read_snapshot(server.client, Keys(), 0, uids).states if uids else {}
    watch = {uid: watched(stream, uid)._replace(devices=None) for uid in uids}
    assert shown(queried) == shown(watch), "a query and a watch show the same"


# Rows as above. Outcome: the notices, as node, device and what the user hides.
PRIVACY_NOTICES = """
the nodes of all sessions learn what their user hides
    a login u s1 phone & login u s2 desk; b login u s3 tv; a update u s1 phone hides=+i
    -> a/desk/i a/phone/i b/tv/i
and that they hide it no more
    a login u s1 phone knows=l; b login u s2 desk; b update u s2 desk hides=-l
    -> a/phone/ a/phone/l b/desk/ b/desk/l
a session that comes later learns it
    a login u s1 & update u s1 hides=+l & end u s1; b login u s2
    -> a//l b//l
a fenced node is not told
    a login u s1 phone; a is fenced; b login u s2 desk & update u s2 desk hides=+i
    -> b/desk/i
"""


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(PRIVACY_NOTICES))
def test_nodes_are_told_what_users_hide(
    store: RedisStore, server: Server, rule: str, steps: str, outcome: str
) -> None:
    hands = {name: Hand(store, name) for name in NODES}
    for hand in hands.values():
        hand.open()
    for step in steps.split("; "):
        assert play(hands, step).status is ReplyStatus.OK
    told = [(name, each) for name in NODES for each in probed(store, name).inbox]
    assert {each.kind for _, each in told} == {NodeNoticeKind.PRIVACY}
    assert sorted(f"{name}/{each.device}/{each.privacy}" for name, each in told) == outcome[3:].split()


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(RULES))
def test_device_events_tell_which_devices_are_on_record(
    server: Server, rule: str, steps: str, outcome: str
) -> None:
    with closing(RedisStore(server.url, Shape(Keys(), 1000, 10**13, device_events=True))) as store:
        hands = {name: Hand(store, name) for name in NODES}
        for hand in hands.values():
            hand.open()
        for step in steps.split("; "):
            play(hands, step)
    stream = events(server.client)
    others = [each for each in stream if each["type"] != "device"]
    assert "; ".join(map(line, others)) == f" {outcome} ".split("->")[0].strip()
    devices: dict[str, set[str]] = {}
    statuses: dict[str, tuple[str, str, bool]] = {}
    for each in stream:
        present = devices.setdefault(each.get("uid", ""), set())
        if each["type"] in {"online", "offline"}:
            present.clear()
        if each["type"] == "online" or (each["type"] == "device" and each["reason"] in {"login", "returned"}):
            assert each["device"] not in present
            present.add(each["device"])
        elif each["type"] == "device":
            present.remove(each["device"])
            assert each["reason"] in {"logout", "node_down"}
        if each["type"] == "device":
            assert {one["device"] for one in json.loads(each["devices"])} == present
            assert shown_status(each) == statuses[each["uid"]], "a device that comes or goes is no new status"
        elif "uid" in each:
            statuses[each["uid"]] = shown_status(each)
    found = online_sessions(server.client)
    assert {(uid, device) for uid, names in devices.items() for device in names} == {
        each[:2] for each in found
    }
    if uids := [*{event["uid"]: None for event in stream if "uid" in event}]:
        queried = read_snapshot(server.client, Keys(), 0, uids, detail=True).states
        watch = {uid: watched(stream, uid) for uid in uids}
        assert shown(undated(queried)) == shown(undated(watch)), "a query and a watch show the same"


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(LIMITS))
def test_the_session_limit_selects_the_sessions_to_end(
    server: Server, rule: str, steps: str, outcome: str
) -> None:
    allowed, _, steps = steps.partition(": ")
    *limits, policy = allowed.split()
    hands: dict[str, Hand] = {}
    with ExitStack() as stack:
        for name, limit in zip(NODES, (*limits, "8"), strict=True):
            store = RedisStore(server.url, Shape(Keys(), 1000, 10**13, int(limit), policy))
            hands[name] = Hand(stack.enter_context(closing(store)), name)
            hands[name].open()
        for step in steps.split("; "):
            assert play(hands, step).status is ReplyStatus.OK
        inboxes = {name: probed(hand.store, name).inbox for name, hand in hands.items()}
    assert {news.kind for inbox in inboxes.values() for news in inbox} <= {NodeNoticeKind.LIMITED}
    found = [node + each.device for node, inbox in inboxes.items() for each in inbox]
    assert found == outcome.removeprefix("->").split()


CLASS_LIMITS = """
only sessions of the class are counted and end
    a login u s1 1 age=3 & login u s2 2 age=2 class=phone; b login u s9 9 class=phone
    -> a2
the newest ends
    a login u s1 1 age=3 class=web & login u s2 2 age=2 class=web; b login u s9 9 class=web
    -> b9
other classes have no limit
    a login u s1 1 age=3 class=tv & login u s2 2 age=2 class=tv; b login u s9 9 class=tv
    ->
a registration is counted, too
    a login u s1 1 age=3 class=phone; b register u s9 9 age=1 class=phone
    -> a1
"""


@pytest.mark.parametrize(("rule", "steps", "outcome"), rows(CLASS_LIMITS))
def test_the_limit_of_a_class_selects_the_sessions_to_end(
    server: Server, rule: str, steps: str, outcome: str
) -> None:
    limits = {"phone": (1, "oldest"), "web": (2, "newest")}
    hands: dict[str, Hand] = {}
    with ExitStack() as stack:
        for name in NODES:
            store = RedisStore(server.url, Shape(Keys(), 1000, 10**13, class_limits=limits))
            hands[name] = Hand(stack.enter_context(closing(store)), name)
            hands[name].open()
        for step in steps.split("; "):
            assert play(hands, step).status is ReplyStatus.OK
        inboxes = {name: probed(hand.store, name).inbox for name, hand in hands.items()}
    found = [node + each.device for node, inbox in inboxes.items() for each in inbox]
    assert found == outcome.removeprefix("->").split()


def test_a_victim_of_the_limit_of_its_class_does_not_count_for_the_one_of_all(server: Server) -> None:
    shape = Shape(Keys(), 1000, 10**13, 2, class_limits={"phone": (1, "oldest")})
    with closing(RedisStore(server.url, shape)) as store:
        a, b = Hand(store, "a"), Hand(store, "b")
        for hand in (a, b):
            hand.open()
        phone = Profile(facts=LoginFacts(device_class="phone"))
        a.apply(login("u", "s1", "tv", age_s=3), login("u", "s2", "old", age_s=2, profile=phone))
        b.apply(login("u", "s3", "new", profile=phone))
        assert [notice.device for notice in probed(store, "a").inbox] == ["old"]


def test_an_older_login_of_a_node_does_not_replace_a_younger_one_of_another(server: Server) -> None:
    with closing(RedisStore(server.url, Shape(Keys(), 1000, 10**13))) as store:
        a, b = Hand(store, "a"), Hand(store, "b")
        for hand in (a, b):
            hand.open()
        b.apply(login("u", "sb", "2", age_s=3))
        a.apply(login("u", "s1", "1"))
        a.apply(login("u", "sa", "2", age_s=5.5))
        assert ("u", "2", "sb") in online_sessions(server.client)


def test_a_batch_may_exceed_one_call(a: Hand, server: Server) -> None:
    users = [f"u{i}" for i in range(1100)]
    a.apply(*(login(uid, "s") for uid in users))
    a.apply(*(end(uid, "s") for uid in users))
    expected = [("online", uid, "login") for uid in users] + [("offline", uid, "logout") for uid in users]
    assert brief_events(server.client) == expected


def test_names_may_contain_any_character(a: Hand, server: Server) -> None:
    uid = "9/ü'\"\\"
    a.apply(login(uid, "s1", "7"), *(login("u", f"s{i}", device) for i, device in enumerate(DEVICES)))
    expected = {(uid, "7", "s1"), *(("u", device, f"s{i}") for i, device in enumerate(DEVICES))}
    assert online_sessions(server.client) == owned(server.client, "a") == expected
