"""Faults planted in the server: a fuzzer that finds none of them would prove nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from presence.core.engine import Engine
from presence.core.profiles import Profiles
from presence.core.registry import Registry
from presence.core.slots import SlotClock
from presence.core.termination import SessionTerminator
from presence.core.wheel import TimingWheel
from presence.protocol import Code, scan
from presence.protocol import codec as protocol_codec
from tests.fuzz import codec, session
from tests.fuzz.__main__ import SEEDS, inputs
from tests.protocol.vectors import BAD, GOOD

Plant = Callable[[pytest.MonkeyPatch], None]


def finds(run: Callable[[bytes], None], name: str) -> bool:
    """Whether at least one input of the corpus fails."""
    frames = [*(vector.frame for vector in GOOD), *(vector.frame for vector in BAD)]
    bodies = [bytes([codec.BODY]) + frame[4:] for frame in frames]
    for data in [*inputs([SEEDS / f"{name}.hex"]), *bodies]:
        try:
            run(data)
        except Exception:  # any consequence of the planted fault
            return True
    return False


def depth_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol_codec, "DEPTH_MAX", 40)


def a_number_may_be_infinite(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scan, "_end_of_float", lambda body, at, form: at + form.size)


def the_schema_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol_codec, "check_payload", lambda kind, payload: None)


def a_bool_is_a_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(protocol_codec, "_is_uint", lambda value: isinstance(value, int) and value >= 0)


@pytest.mark.parametrize(
    "plant",
    [depth_is_not_checked, a_number_may_be_infinite, the_schema_is_not_checked, a_bool_is_a_number],
)
def test_a_fault_of_the_codec_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert finds(codec.run, "codec")


def a_device_stays_in_the_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Registry, "_remove_device", lambda self, uid, device: None)


def a_session_id_is_reused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Registry, "session_id", lambda self, session: f"boot-{session.number % 2}")


def an_end_leaves_its_key_in_the_wheel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimingWheel, "discard", lambda self, key: True)


def a_profile_outlives_its_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Profiles, "remove", lambda self, number: None)


def the_wheel_fires_a_slot_early(patch: pytest.MonkeyPatch) -> None:
    rightly = SlotClock.at_or_after
    patch.setattr(SlotClock, "at_or_after", lambda self, deadline: rightly(self, deadline) - 1)


def the_wheel_fires_late(patch: pytest.MonkeyPatch) -> None:
    rightly = SlotClock.at_or_after
    patch.setattr(SlotClock, "at_or_after", lambda self, deadline: rightly(self, deadline) + 3)


def a_replaced_connection_stays_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SessionTerminator, "hang_up", lambda self, session, goodbye: None)


def a_lost_connection_has_no_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Code, "reconnect", property(lambda code: False))


def a_guest_is_in_the_registry(patch: pytest.MonkeyPatch) -> None:
    opened = Engine.opened

    def enter(self: Engine, link: Any, handle: Any, address: str) -> Any:
        guest = opened(self, link, handle, address)
        self.registry._sessions["guest"] = guest  # type: ignore[assignment]
        return guest

    patch.setattr(Engine, "opened", enter)


def a_handler_fails(patch: pytest.MonkeyPatch) -> None:
    def fail(self: Profiles, number: int) -> None:
        raise KeyError(number)

    patch.setattr(Profiles, "clear_auto_away", fail)


@pytest.mark.parametrize(
    "plant",
    [
        a_device_stays_in_the_index,
        a_session_id_is_reused,
        an_end_leaves_its_key_in_the_wheel,
        a_profile_outlives_its_session,
        the_wheel_fires_a_slot_early,
        the_wheel_fires_late,
        a_replaced_connection_stays_open,
        a_lost_connection_has_no_grace,
        a_guest_is_in_the_registry,
        a_handler_fails,
    ],
)
def test_a_fault_of_the_server_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert finds(session.run, "session")


@pytest.mark.parametrize(("name", "run"), [("codec", codec.run), ("session", session.run)])
def test_without_a_fault_nothing_is_found(name: str, run: Callable[[bytes], None]) -> None:
    assert not finds(run, name)
