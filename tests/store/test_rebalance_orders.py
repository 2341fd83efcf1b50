"""Orders to send clients away, as text on a control channel."""

import json
from typing import Any

import pytest

from presence.store.control_messages import MAX_COMMAND_CHARS, RebalanceOrder, read_rebalance, rebalance_text

ORDER = RebalanceOrder("ops@host 1f", 7, 5.0, 12.5)


@pytest.mark.parametrize("order", [ORDER, RebalanceOrder("", 0, 60.0, 0.0)])
def test_an_order_is_read_as_it_was_written(order: RebalanceOrder) -> None:
    assert read_rebalance(json.loads(rebalance_text(order))) == order


@pytest.mark.parametrize(
    "other",
    [
        {"type": "banned"},
        {"command": None},
        {"command": "x" * (MAX_COMMAND_CHARS + 1)},
        {"clients": -1},
        {"clients": 1_000_001},
        {"clients": 1.0},
        {"clients": True},
        {"over_s": 0.5},
        {"over_s": 61},
        {"over_s": "5"},
        {"over_s": float("nan")},
        {"min_age_s": -1},
        {"min_age_s": float("inf")},
        {"min_age_s": None},
    ],
)
def test_a_value_out_of_bounds_is_no_order(other: dict[str, Any]) -> None:
    assert read_rebalance({**json.loads(rebalance_text(ORDER)), **other}) is None
