"""The timing wheel as bars of text.

Tests: `tests/top/test_view.py`.
"""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

SOON: Final = 2  # slots whose sessions are due next


def wheel_rows(sizes: Sequence[int], slot_s: float, bar_width: int) -> list[Text]:
    """Return a line for each slot, the soonest first: when it is due, and how many sessions it has.

    Args:
        sizes: sessions in each slot.
        slot_s: seconds that a slot covers.
        bar_width: columns of the bar of the fullest slot.
    """
    largest = max([*sizes, 1])
    rows = []
    for number, size in enumerate(sizes):
        row = Text(f"in {(number + 1) * slot_s:4.1f} s ", style="dim")
        row.append(
            "█" * round(size / largest * bar_width), style=f"not dim {'red' if number < SOON else 'green'}"
        )
        row.append(f" {size:,}" if size else "", style="not dim")
        rows.append(row)
    return rows


def merged_slots(sizes: Sequence[int], rows: int) -> tuple[list[int], int]:
    """Return the slots merged into at most so many groups of equal length, and that length in slots."""
    length = max(1, -(-len(sizes) // rows))
    return [sum(sizes[first : first + length]) for first in range(0, len(sizes), length)], length
