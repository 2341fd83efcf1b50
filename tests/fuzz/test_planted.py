"""Faults planted in the codec: a fuzzer that finds none of them would prove nothing."""

from collections.abc import Callable

import pytest

from presence.protocol import codec as protocol_codec
from presence.protocol import scan
from tests.fuzz import codec
from tests.fuzz.__main__ import CORPUS, inputs
from tests.protocol.vectors import BAD, GOOD

Plant = Callable[[pytest.MonkeyPatch], None]


def finds() -> bool:
    """Whether at least one input of the corpus fails."""
    frames = [*(vector.frame for vector in GOOD), *(vector.frame for vector in BAD)]
    bodies = [bytes([codec.BODY]) + frame[4:] for frame in frames]
    for data in [*inputs([CORPUS]), *bodies]:
        try:
            codec.run(data)
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
    assert finds()


def test_without_a_fault_nothing_is_found() -> None:
    assert not finds()
