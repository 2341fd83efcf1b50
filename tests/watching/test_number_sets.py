"""Sets of numbers against Python's, in play that makes chains of them arrays and back."""

from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from presence.watching.number_sets import CHAIN, CROWD, NumberSets

# Few places, and runs of numbers that come or go together, so that sets grow and shrink beyond both bounds.
steps = tuples(integers(0, 3), integers(0, 3 * CROWD), integers(1, CROWD))


@given(lists(steps, max_size=40))
def test_sets_have_what_was_added_and_not_removed(played: list[tuple[int, int, int]]) -> None:
    sets = NumberSets()
    model: list[set[int]] = [set() for _ in range(4)]
    for place, first, count in played:
        for number in range(first, first + count):  # each changes sides
            if number in model[place]:
                sets.remove(place, number)
            else:
                sets.add(place, number)
            model[place] ^= {number}
            assert sorted(sets.get(place)) == sorted(model[place])
    assert [sorted(sets.get(place)) for place in range(5)] == [*map(sorted, model), []]
    assert [sets.has_any(place) for place in range(5)] == [*map(bool, model), False]


def test_the_memory_of_what_is_removed_is_used_again() -> None:
    sets = NumberSets()
    for _ in range(3):
        for place in range(50):
            for number in range(CROWD + 1 if place % 2 else CHAIN):
                sets.add(place, number)
        cells, crowds = len(sets._members), len(sets._crowds)
        for place in range(50):
            for number in range(CROWD + 1 if place % 2 else CHAIN):
                sets.remove(place, number)
    assert cells <= 50 * CROWD
    assert crowds == 25
