"""Facts of a login that events tell for as long as its session lives.

A further one is a field here, a name in TEXTS of `store/scripts/lib/event_texts.lua`, and a field of the
subscriber's events. One that every login has needs a setting: a session without facts takes no memory for
them, and is cheaper for Redis.

Tests: `tests/core/test_profiles.py`, `tests/store/test_event_fields.py`.
"""

from typing import Final, NamedTuple


class LoginFacts(NamedTuple):
    """What a login tells for as long as its session lives; "" where it does not."""

    address: str = ""  # of the client, for the application's backend, where a setting asks for it
    device_class: str = ""  # what the device is: phone, web


NO_FACTS: Final = LoginFacts()


def facts_of_login(address: str, device_class: str, *, records_addresses: bool) -> LoginFacts:
    """Return the facts of a login from this address; most logins share `NO_FACTS`."""
    if device_class or (records_addresses and address):
        return LoginFacts(address if records_addresses else "", device_class)
    return NO_FACTS
