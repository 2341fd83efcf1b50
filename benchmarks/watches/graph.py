"""A graph of friends with realistic degrees: mutual, log-normal, the same for the same seed.

A user has, at the median, about 0.73 of the mean number of friends, and one in twenty has more than 2.7 times
the mean, as in published counts of social networks. Friends are drawn at random: communities would only make
the watched users of one worker fewer.

Tests: `tests/benchmarks/test_watches.py`.
"""

import math
import random
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

SIGMA = 0.8  # of the logarithm of a degree
MAX_FRIENDS = 500  # one `watch` has room for so many


@dataclass(frozen=True)
class FriendGraph:
    """The friends of users `first`, `first` + 1 and so on, in two arrays: 4 bytes for each friend."""

    first: int
    offsets: Sequence[int]  # where each user's friends begin in `friends`, and last where they end
    friends: Sequence[int]  # rising for each user

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def edges(self, user: int) -> range:
        """Return where the friends of a user stand in `friends`."""
        return range(self.offsets[user - self.first], self.offsets[user - self.first + 1])

    def friends_of(self, user: int) -> Sequence[int]:
        edges = self.edges(user)
        return self.friends[edges.start : edges.stop]

    def edge(self, user: int, friend: int) -> int:
        """Return where a friend of a user stands in `friends`."""
        edges = self.edges(user)
        found = bisect_left(self.friends, friend, edges.start, edges.stop)
        if found == edges.stop or self.friends[found] != friend:
            raise KeyError(friend)
        return found

    def part(self, first: int, end: int) -> "FriendGraph":
        """Return the graph of some of its users."""
        begin = self.offsets[first - self.first]
        offsets = array(
            "I", (each - begin for each in self.offsets[first - self.first : end - self.first + 1])
        )
        return FriendGraph(first, offsets, self.friends[begin : begin + offsets[-1]])


def random_graph(users: int, mean: float, seed: int = 1) -> FriendGraph:
    """Return a graph of users 0, 1 and so on, with about `mean` friends each, and at least one."""
    random_numbers = random.Random(seed)
    most = min(MAX_FRIENDS, users - 1)
    wanted = [random_numbers.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA) for _ in range(users)]
    scale = mean * users / sum(min(most, each) for each in wanted)  # what the bound has taken
    ends = array("I")  # each user as often as they want friends
    for user, each in enumerate(wanted):
        ends.extend([user] * max(1, min(most, round(each * scale))))
    random_numbers.shuffle(ends)
    drawn = zip(ends[::2], ends[1::2], strict=False)
    pairs = {min(pair) * users + max(pair) for pair in drawn if pair[0] != pair[1]}
    lonely = {*range(users)} - {user for pair in pairs for user in divmod(pair, users)}
    pairs |= {min(user, (user + 1) % users) * users + max(user, (user + 1) % users) for user in lonely}
    found: list[list[int]] = [[] for _ in range(users)]
    for pair in pairs:
        one, other = divmod(pair, users)
        found[one].append(other)
        found[other].append(one)
    friends = array("I")
    for those in found:
        those.sort()
        friends.extend(those)
    return FriendGraph(0, array("I", accumulate(map(len, found), initial=0)), friends)


def distinct_friends(graph: FriendGraph, groups: Sequence[int]) -> dict[int, int]:
    """Return for each group of users the number of their friends, each counted once; `groups`: by user."""
    found: dict[int, set[int]] = {}
    for group, (begin, end) in zip(groups, pairwise(graph.offsets), strict=True):
        found.setdefault(group, set()).update(graph.friends[begin:end])
    return {group: len(users) for group, users in found.items()}
