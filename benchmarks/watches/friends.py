"""Clients of this server, and of an MQTT broker with one retained topic a user.

With MQTT 3.1.1 each user has a topic with a retained message: status, time, a running number and meta, packed
as small as a row of this server. A client subscribes to the topics of its friends, publishes its own changes,
and leaves a will for the case that it falls silent. All with QoS 0.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from benchmarks.watches.crowd import NO_ID, UID, Crowd, Friend, entry_id_number, id_number, number_of
from presence import protocol
from presence.loadtest.client_loop import LOGIN_ID, READ_BYTES
from presence.protocol import HEADER_BYTES, Code, Kind

BATCH_KIND = 69  # several changes in one packet, for clients that say `batch`
WATCH_ID, UPDATE_ID, LOGOUT_ID = 3, 4, 5
DEFAULT_RETRY_S = 1.0
MQTT_KEEPALIVE_S = 20  # a broker waits for half of it more: 30 s, as this server does
TOPIC = "p/" + UID
TOPIC_UID_AT = 2
CONNACK, PUBLISH = 0x20, 0x30
RETAIN = 0x01


class PresenceFriend(Friend):
    """A client of this server.

    Attributes:
        says_batch: whether it takes several changes in one packet, and rows for states.
    """

    says_batch = False

    def on_connected(self) -> None:
        if self.came_by:
            self.crowd.note_action(self, self.came_by)
        login = protocol.login(self.uid, id=LOGIN_ID)
        if self.says_batch:
            login = login._replace(payload={**login.payload, "batch": True})
        self.send(protocol.encode_unchecked(login))

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self.node, self.came_by = payload["session"].rpartition("-")[0], 0
        self.logged_in()

    def watch(self) -> None:
        self.watched_at = time.monotonic()
        uids = map(UID.format, self.crowd.graph.friends_of(self.number))
        self.send(protocol.encode(protocol.watch(uids, id=WATCH_ID)))
        self.crowd.status.watches += 1

    def set_status(self, status: str) -> None:
        self.status = status
        self.crowd.note_action(self, int(Code.AWAY if status == "away" else Code.BACK))
        self.send(protocol.encode(protocol.update(status=status, id=UPDATE_ID)))

    def set_meta(self, number: int) -> None:
        self.crowd.note_action(self, int(Code.UPDATED))
        self.send(protocol.encode(protocol.update(meta={"song": number}, id=UPDATE_ID)))

    def log_out(self) -> None:
        self.crowd.note_action(self, int(Code.LOGOUT))
        self.status, self.reconnects = "offline", False
        self.send(protocol.encode(protocol.logout(id=LOGOUT_ID)))

    def handle_packet(self, body: bytes, now: float) -> None:
        if body[1] == Kind.PRESENCE or body[1] == BATCH_KIND:
            status = self.crowd.status
            status.push_packets += 1
            status.push_bytes += HEADER_BYTES + len(body)
        elif self.watched_at and not self.is_watching:
            self.crowd.status.answer_bytes += HEADER_BYTES + len(body)
        super().handle_packet(body, now)

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        learn, number = self.crowd.learn, self.number
        if kind == Kind.PRESENCE:
            id_now = entry_id_number(payload.get("id"))
            learn(number, number_of(payload["uid"]), payload["status"], id_now, now)
        elif kind == BATCH_KIND:
            for friend, status, id_now in rows(payload["changes"]):
                learn(number, friend, status, id_now, now)
        elif kind == Kind.OK and id == WATCH_ID:
            if "states" in payload:
                states = rows(payload["states"])
            else:
                states = (
                    (number_of(uid), state["status"], entry_id_number(state["id"]))
                    for uid, state in payload["presence"].items()
                )
            self.crowd.learn_all(number, states)
            self.watch_answered(now)
        elif kind == Kind.ERROR:
            self.crowd.status.refused[payload["reason"]] += 1
            if id == WATCH_ID:
                self.crowd.watch_over(self)
                self.crowd.call_at(now + payload.get("retry_after", DEFAULT_RETRY_S), self._watch_again)

    def _watch_again(self) -> None:
        if self.is_logged_in and not self.is_watching:
            self.crowd.want_watch(self)

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        if self.is_silent and payload and payload["code"] == Code.IDLE_TIMEOUT:
            self.session_expired(now)
        elif self.status != "offline":
            self.connection_lost(payload["reason"] if payload else "closed")


class BatchFriend(PresenceFriend):
    """The same, with `batch`."""

    says_batch = True


def rows(given: Sequence[Any]) -> Iterator[tuple[int, str, int]]:
    """Yield user, status and id of states that came as rows."""
    for row in given:
        if isinstance(row, str):
            yield number_of(row), "offline", NO_ID
        else:
            uid, status, _, ms, n = [*row, None, None, None, None][:5]
            yield number_of(uid), status or "offline", NO_ID if ms is None else id_number(ms, n or 0)


class MqttFriend(Friend):
    """A client of an MQTT broker."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd, number)
        self._topic = TOPIC.format(number).encode()
        self._published = 0
        self._received = b""
        self._answer: list[tuple[int, str, int]] = []  # retained messages that have come

    def on_connected(self) -> None:
        self._received, self._answer = b"", []
        head = b"\x00\x04MQTT\x04\x26" + MQTT_KEEPALIVE_S.to_bytes(2, "big")  # clean session, retained will
        will = msgpack.packb(["offline", 0, 0])
        self.send(_packet(0x10, head + b"".join(map(_text, (self.uid.encode(), self._topic, will)))))

    def watch(self) -> None:
        self.watched_at = time.monotonic()
        topics = (
            _text(TOPIC.format(each).encode()) + b"\0" for each in self.crowd.graph.friends_of(self.number)
        )
        self.send(_packet(0x82, b"\x00\x01" + b"".join(topics)))
        self.crowd.status.watches += 1

    def set_status(self, status: str) -> None:
        self.status = status
        self._publish(status, Code.AWAY if status == "away" else Code.BACK)

    def set_meta(self, number: int) -> None:
        self._publish(self.status, Code.UPDATED, {"song": number})

    def log_out(self) -> None:
        self.status, self.reconnects = "offline", False
        self._publish("offline", Code.LOGOUT)
        self.send(b"\xe0\x00")
        self.close()

    def send_keepalive(self) -> None:
        self.send(b"\xc0\x00")

    def _publish(self, *words: Any) -> None:
        status, code, *meta = words
        self._published += 1
        ms = time.time_ns() // 1_000_000
        self.crowd.note_action(self, int(code), id_number(ms, self._published))
        self.send(
            _packet(
                PUBLISH | RETAIN, _text(self._topic) + msgpack.packb([status, ms, self._published, *meta])
            )
        )

    def read(self) -> None:
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        now = time.monotonic()
        if not data:
            self.handle_disconnect(None, now)
            return
        data, start, fd = self._received + data, 0, self.fd
        while (end := _packet_end(data, start)) is not None:
            body, stop = end
            if stop > len(data):
                break
            self._handle(data[start], data[body:stop], stop - start, now)
            if self.fd != fd:
                return
            start = stop
        self._received = data[start:]

    def _handle(self, first: int, body: bytes, size: int, now: float) -> None:
        self.loop.packets += 1
        if first & 0xF0 == PUBLISH:
            length = int.from_bytes(body[:2], "big")
            friend = number_of(body[2 + TOPIC_UID_AT : 2 + length].decode())
            status, ms, number = msgpack.unpackb(body[2 + length :])[:3]
            id, is_push = id_number(ms, number), not first & RETAIN
            counts = self.crowd.status
            if is_push:
                counts.push_packets += 1
                counts.push_bytes += size
                self.crowd.learn(self.number, friend, status, id, now, rises=False)
            else:
                counts.answer_bytes += size
                self._answer.append((friend, status, id))
                if len(self._answer) == len(self.crowd.graph.edges(self.number)):
                    self.crowd.learn_all(self.number, self._answer)
                    self._answer = []
                    self.watch_answered(now)
        elif first == CONNACK:
            if body[1]:
                self.crowd.status.refused[f"CONNACK {body[1]}"] += 1
                return
            self.is_logged_in = True
            self.loop.logins += 1
            self._publish("online", Code.LOGIN)
            self.logged_in()

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        if self.is_silent:
            self.session_expired(now)
        else:
            self.connection_lost("closed")


def _text(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def _packet(first: int, body: bytes) -> bytes:
    length, left = bytearray(), len(body)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return bytes([first, *length, left]) + body


def _packet_end(data: bytes, start: int) -> tuple[int, int] | None:
    """Return where the body of the packet at `start` begins and ends; None while that is not known."""
    length = shift = 0
    for at in range(start + 1, len(data)):
        length |= (data[at] & 127) << shift
        shift += 7
        if data[at] < 128:
            return at + 1, at + 1 + length
    return None
