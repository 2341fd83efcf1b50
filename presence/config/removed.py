"""Settings of 1.0.0rc1 that are gone, and what holds now. To give one is an error, as any unknown name is.

Tests: `tests/config/test_loader.py`, `tests/cli/test_main.py`.
"""

from typing import Final

REMOVED: Final = {
    "accept_rate": "follows from login_rate (twice as many)",
    "accept_burst": "follows from login_rate (4 s of it)",
    "login_burst": "follows from login_rate (4 s of it)",
    "address_login_burst": "follows from address_login_rate (100 s of it)",
    "uid_login_burst": "follows from uid_login_rate (100 s of it)",
    "packet_burst": "follows from packet_rate (10 s of it)",
    "outbox_items": "follows from max_connections (2 for each, at least 100,000)",
    "outbox_bytes": "follows from max_connections (1,024 for each, at least 51,200,000)",
    "batch_window_ms": "is 100 ms, or a quarter of tick if that is less",
    "flap_returns": "is 6 per minute",
    "max_grace": "is 60 s",
    "unsent_timeout": "is 10 s",
    "tls_handshakes": "is 2,000",
    "token_check_share": "is 0.5",
    "max_shared_watches": "follows from watch_memory (MB for each worker)",
    "admin_message_rate": "is 200 per second",
}


def removal(name: str) -> str:
    """Return the error of a removed setting that was given."""
    return f"{name}: is no longer a setting, it {REMOVED[name]}: remove it"
