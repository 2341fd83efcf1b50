"""Requests of WebSocket and their answers: what is accepted, and each cause of a refusal."""

import pytest

from presence import protocol
from presence.protocol import Code
from presence.transports.websocket_head import origins_of, refused_as, respond

HEADERS = {
    "Host": "127.0.0.1:7401",
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def head(line: str = "GET / HTTP/1.1", **headers: str | None) -> bytes:
    fields = {**HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [line, *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize(
    ("request_head", "answer", "is_json"),
    [
        (head(Sec_WebSocket_Protocol="presence.v1"), "Sec-WebSocket-Protocol: presence.v1\r\n", False),
        (head(Sec_WebSocket_Protocol="presence.v1.json"), "presence.v1.json\r\n", True),
        (head(Sec_WebSocket_Protocol="x, presence.v1.json, presence.v1"), "presence.v1.json\r\n", True),
        (head(), "", True),
        (head("GET /any/path?with=query HTTP/1.1"), "", True),
    ],
    ids=["binary", "JSON", "the client's order", "none offered", "any path"],
)
def test_the_subprotocol_is_chosen(request_head: bytes, answer: str, is_json: bool) -> None:
    got = respond(request_head, origins_of(()))
    assert got.status == 101
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in got.data
    assert answer.encode() in got.data
    assert got.is_json is is_json
    assert (b"Sec-WebSocket-Protocol" in got.data) == bool(answer)


def test_compression_is_declined() -> None:
    got = respond(head(Sec_WebSocket_Extensions="permessage-deflate"), origins_of(()))
    assert got.status == 101
    assert b"Extensions" not in got.data


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head(Sec_WebSocket_Protocol="presence.v2"), 400),
        (head(Origin="https://evil.example"), 403),
        (head(Origin="null"), 403),
        (head(Origin="http://localhost.evil.example"), 403),
        (head(Upgrade=None), 426),
        (head(Connection="close"), 426),
        (head(Sec_WebSocket_Key=None), 400),
        (head(Sec_WebSocket_Key="short"), 400),
        (head(Sec_WebSocket_Version="8"), 400),
        (head(Host=None), 400),
        (head("POST / HTTP/1.1"), 405),
        (head("HEAD / HTTP/1.1"), 405),
        (head("GET / HTTP/1.0"), 505),
        (head("GET / HTTP/2.0"), 400),
        (head("GET /"), 400),
        (head(X="a\0b"), 400),
        (head(Transfer_Encoding="chunked"), 400),
        (head(**{f"X{number}": "y" for number in range(200)}), 431),
    ],
)
def test_a_bad_request_is_refused(request_head: bytes, status: int) -> None:
    got = respond(request_head, origins_of(()))
    assert got.status == status
    assert got.data.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in got.data


@pytest.mark.parametrize(
    ("allowed", "origin", "is_accepted"),
    [
        ([], "http://localhost:5173", True),
        ([], "https://127.0.0.1", True),
        ([], "http://[::1]:8080", True),
        ([], "http://127.0.0.1.evil.example", False),
        ([], "https://example.com", False),
        (["https://example.com"], "https://example.com", True),
        (["https://example.com"], "https://example.com:8443", False),
        (["https://example.com"], "http://example.com", False),
        (["https://example.com"], "http://localhost", False),
        (["https://*.example.com"], "https://app.example.com", True),
        (["https://*.example.com"], "https://a.b.example.com", False),
        (["https://*.example.com"], "https://evil.com/.example.com", False),
        (["https://*.example.com"], "https://example.com", False),
        (["null"], "null", True),
        (["*"], "https://anywhere.example", True),
    ],
)
def test_origins(allowed: list[str], origin: str, is_accepted: bool) -> None:
    assert (respond(head(Origin=origin), origins_of(allowed)).status == 101) == is_accepted


@pytest.mark.parametrize(
    ("code", "retry_after", "status"),
    [
        (Code.BUSY, 2.4, b"503"),
        (Code.LOGIN_TIMEOUT, None, b"408"),
        (Code.RATE_LIMITED, 0.2, b"429"),
        (Code.PROTOCOL_ERROR, None, b"400"),
        (Code.SERVER_DRAIN, None, b"503"),
        (Code.BANNED, 60, b"403"),
    ],
)
def test_a_refusal_packet_becomes_http(code: Code, retry_after: float | None, status: bytes) -> None:
    got = refused_as(protocol.encode(protocol.error(None, code, "not now", retry_after))).data
    assert got.split(b" ")[1] == status
    assert got.endswith(f"{code.reason}: not now\n".encode())
    assert (b"Retry-After: " in got) == (retry_after is not None)
    assert b"Retry-After: 0" not in got
