"""An operator hears what is open to strangers, and nothing where nothing is."""

from pathlib import Path
from typing import Any

import pytest

from presence.config import exposures
from presence.settings import Settings

KEYS, CERT = Path("keys.json"), Path("cert.pem")
ANY_USER, BY_PROXY, IN_THE_CLEAR = "reaches this server", "a proxy lets in", "over plain TCP"
OPERATORS_IN_THE_CLEAR = "over plain HTTP"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, []),
        ({"host": "localhost", "token_keys": KEYS}, []),
        ({"host": "::", "insecure": True}, [ANY_USER]),
        ({"proxy_from": "10.0.0.0/8"}, [BY_PROXY]),
        ({"proxy_from": "10.0.0.0/8", "token_keys": KEYS, "host": "::"}, []),
        ({"host": "::", "token_keys": KEYS}, [IN_THE_CLEAR]),
        ({"host": "::", "token_keys": KEYS}, ["set tls_cert, tls_only"]),
        (
            {"host": "::", "token_keys": KEYS, "tls_cert": CERT},
            [f"{IN_THE_CLEAR} can be read on their way: set tls_only"],
        ),
        ({"host": "::", "token_keys": KEYS, "tls_cert": CERT, "tls_only": True}, []),
        ({"admin": "[::]:7480", "admin_tokens": KEYS}, [OPERATORS_IN_THE_CLEAR]),
        ({"admin": "[::1]:7480", "admin_tokens": KEYS}, []),
        ({"admin": "0.0.0.0:7480", "no_admin": True}, []),
    ],
)
def test_what_is_open_is_told(given: dict[str, Any], told: list[str]) -> None:
    found = list(exposures(Settings(**given)))
    assert len(found) == len(told)
    for text, part in zip(found, told, strict=True):
        assert part in text
