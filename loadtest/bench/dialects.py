"""How a client of each kind of server logs in, beats and is answered: bytes, as data.

MQTT is version 3.1.1 (CONNECT, PINGREQ); NATS is its text protocol (INFO, CONNECT, PING).
"""

from collections.abc import Callable
from dataclasses import dataclass

import protocol

ANSWERED = "answered"
UNANSWERED = "unanswered"

_MQTT_KEEP_ALIVE_S = 60
_MQTT_CLEAN_SESSION = 0x02
_NATS_LOGIN = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1"}\r\nPING\r\n'


@dataclass(frozen=True)
class Dialect:
    """What goes over a connection.

    Attributes:
        login: what client `uid` sends at first.
        welcome: what the server's first answer ends with; whatever came before it is passed over.
        beats: the packet for each kind of keepalive that there is.
        answer: what the server sends for each answered keepalive.
    """

    login: Callable[[str], bytes]
    welcome: Callable[[bytes], bool]
    beats: dict[str, bytes]
    answer: bytes


def _presence_login(uid: str) -> bytes:
    return protocol.encode(protocol.login(uid, id=1))


def _presence_welcome(data: bytes) -> bool:
    end = protocol.frame_end(data, 0, protocol.FRAME_LIMIT_BYTES)
    if not end:
        return False
    answer = protocol.decode(data[protocol.HEADER_BYTES : end])
    if answer.kind != protocol.Kind.OK:
        raise ConnectionRefusedError(f"login refused: {answer}")
    return True


def _mqtt_login(uid: str) -> bytes:
    name = uid.encode()
    head = b"\x00\x04MQTT\x04" + bytes([_MQTT_CLEAN_SESSION]) + _MQTT_KEEP_ALIVE_S.to_bytes(2, "big")
    body = head + len(name).to_bytes(2, "big") + name
    if len(body) > 127:
        raise ValueError("the length takes one byte here, so the name must be short")
    return b"\x10" + bytes([len(body)]) + body


def _mqtt_welcome(data: bytes) -> bool:
    if len(data) < 4:
        return False
    if data != b"\x20\x02\x00\x00":
        raise ConnectionRefusedError(f"CONNACK {data!r}")
    return True


def _nats_login(_uid: str) -> bytes:
    return _NATS_LOGIN


def _nats_welcome(data: bytes) -> bool:
    if b"-ERR" in data:
        raise ConnectionRefusedError(repr(data))
    return data.endswith(b"PONG\r\n")


_ACKNOWLEDGED = protocol.encode(protocol.keepalive(7))

PRESENCE = Dialect(
    _presence_login,
    _presence_welcome,
    {UNANSWERED: protocol.KEEPALIVE, ANSWERED: _ACKNOWLEDGED},
    protocol.keepalive_answer(_ACKNOWLEDGED),
)
MQTT = Dialect(_mqtt_login, _mqtt_welcome, {ANSWERED: b"\xc0\x00"}, b"\xd0\x00")
NATS = Dialect(_nats_login, _nats_welcome, {ANSWERED: b"PING\r\n"}, b"PONG\r\n")

DIALECTS = {"presence": PRESENCE, "mqtt": MQTT, "nats": NATS}
