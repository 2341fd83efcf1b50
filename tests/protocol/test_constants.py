"""The numbers that every client in the field relies on."""

import re

import pytest

from protocol import VERSION, Code, Kind, error, goodbye

# As the contract with clients words it; `r` marks those after which a client may come back.
CONTRACT = """
1 login · 2 returned · 3 away · 4 back · 5 updated · 100 logout · 101 background · 200 closed r ·
201 idle_timeout r · 202 slow_consumer r ·
300 replaced · 301 kicked · 302 auth_expired r · 303 auth_failed · 304 session_limit · 310 protocol_error ·
311 rate_limited r · 312 login_timeout r · 313 unsupported · 314 recipient_offline · 315 too_large ·
316 not_logged_in · 317 recipient_disconnected r · 400 server_drain r ·
401 server_restart r · 402 node_down r · 403 server_error r · 404 busy r
"""
KINDS = """
1 login · 2 message · 3 keepalive · 4 logout · 5 query · 6 watch · 7 unwatch · 8 update ·
64 ok · 65 error · 66 presence · 67 deliver · 68 goodbye
"""


def test_codes_are_those_of_the_contract() -> None:
    contract = {
        (int(number), name, mark == " r")
        for number, name, mark in re.findall(r"(\d+) (\w+)( r\b)?", CONTRACT)
    }
    assert {(code.value, code.reason, code.reconnect) for code in Code} == contract


def test_kinds_are_those_of_the_contract() -> None:
    contract = {(int(number), name) for number, name in re.findall(r"(\d+) (\w+)", KINDS)}
    assert {(kind.value, kind.name.lower()) for kind in Kind} == contract


def test_version_is_1() -> None:
    assert VERSION == 1


@pytest.mark.parametrize("code", Code)
def test_goodbye_says_whether_to_come_back(code: Code) -> None:
    assert goodbye(code).payload == {"code": code, "reason": code.reason, "reconnect": code.reconnect}


def test_error_names_its_code() -> None:
    payload = {"code": 404, "reason": "busy", "message": "full", "retry_after": 2.5}
    assert error(7, Code.BUSY, "full", 2.5) == (65, 7, payload)
