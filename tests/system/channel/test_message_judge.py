"""Whether the judge of messages sees what is wrong."""

from dataclasses import replace

import pytest

from presence.protocol import Code
from tests.system.channel.message_judge import Received, SentMessage, judge

STAYED = {"ann": 1, "bob": 2}  # dan moves, eve is never there
HANDED = SentMessage("bob", "ann", 1, 1)
BOTH = SentMessage("ann", "bob", 1, 2)
REFUSED = SentMessage("ann", "eve", 1, 0, Code.RECIPIENT_OFFLINE)
LOST = SentMessage("ann", "bob", 1, 0, Code.SERVER_ERROR)
TO_DAN = SentMessage("ann", "dan", 1, 1)
Inbox = dict[tuple[str, str], list[Received]]


def inbox(**received: list[tuple[int, str]]) -> Inbox:
    """``ann=[(0, "bob")]``: ann's default device; ``bob_pad`` is bob's device pad."""
    found = {}
    for name, messages in received.items():
        uid, _, device = name.partition("_")
        found[uid, device] = [Received(*each) for each in messages]
    return found


def wrong(sent: list[SentMessage], found: Inbox) -> list[str]:
    return [*judge(sent, found, STAYED, frozenset({"eve"})).counts]


def test_whatever_has_its_outcome_is_counted() -> None:
    sent = [HANDED, BOTH, REFUSED, LOST, TO_DAN, TO_DAN]
    found = inbox(ann=[(0, "bob")], bob=[(1, "ann")], bob_pad=[(1, "ann")], dan=[(5, "ann")])
    verdict = judge(sent, found, STAYED, frozenset({"eve"}))
    assert verdict.broken == []
    assert (verdict.delivered, verdict.refused, verdict.lost, verdict.missed) == (4, 1, {403: 1}, 1)
    assert verdict.received == 4


def test_who_was_told_that_it_is_lost_need_not_mind_if_it_is_not() -> None:
    assert wrong([LOST], inbox(bob=[(0, "ann")])) == []


TO_ONE, TO_NOBODY = replace(BOTH, delivered=1), replace(TO_DAN, delivered=0)
TO_ABSENT, BUSY = replace(REFUSED, code=0, delivered=1), replace(LOST, code=Code.BUSY)
DANS_TWO = inbox(dan=[(0, "ann")], dan_pad=[(0, "ann")])


@pytest.mark.parametrize(
    ("sent", "found", "complaint"),
    [
        (HANDED, inbox(ann=[(0, "bob"), (0, "bob")]), "received twice"),
        (HANDED, inbox(ann=[(0, "dan")]), "received what nobody sent"),
        (HANDED, inbox(ann=[(0, "bob")], dan=[(0, "bob")]), "received what nobody sent"),
        (HANDED, inbox(ann=[(0, "bob"), (7, "bob")]), "received what nobody sent"),
        (replace(HANDED, answers=0), inbox(ann=[(0, "bob")]), "never answered"),
        (replace(HANDED, answers=2), inbox(ann=[(0, "bob")]), "answered more than once"),
        (HANDED, inbox(), "handed and not received"),
        (BOTH, inbox(bob=[(0, "ann")]), "handed and not received"),
        (TO_ONE, inbox(bob=[(0, "ann")]), "handed to another number of sessions than there are"),
        (TO_DAN, DANS_TWO, "received by more than it was handed to"),
        (TO_NOBODY, inbox(), "handed to nobody, and granted"),
        (replace(REFUSED, recipient="dan"), inbox(dan=[(0, "ann")]), "refused, and received"),
        (replace(REFUSED, recipient="bob"), inbox(), "refused though the recipient was connected"),
        (BUSY, inbox(bob=[(0, "ann")]), "said to be surely not delivered, and received"),
        (TO_ABSENT, inbox(), "handed to somebody who was never there"),
    ],
)
def test_each_fault_has_a_name(sent: SentMessage, found: Inbox, complaint: str) -> None:
    assert complaint in wrong([sent], found)


@pytest.mark.parametrize(
    ("sent", "found", "is_right"),
    [
        ([HANDED, HANDED], inbox(ann=[(1, "bob"), (0, "bob")]), False),
        ([HANDED, replace(HANDED, sender="dan")], inbox(ann=[(1, "dan"), (0, "bob")]), True),
        # Two devices of one sender are in no order, each of them has one, over its connections.
        ([HANDED, replace(HANDED, connection=1)], inbox(ann=[(1, "bob"), (0, "bob")]), True),
        (
            [HANDED, replace(HANDED, connection=1), HANDED],
            inbox(ann=[(2, "bob"), (1, "bob"), (0, "bob")]),
            False,
        ),
        ([TO_DAN, TO_DAN], inbox(dan=[(1, "ann"), (0, "ann")]), False),
    ],
)
def test_who_sent_over_one_connection_is_read_in_order(
    sent: list[SentMessage], found: Inbox, is_right: bool
) -> None:
    assert wrong(sent, found) == ([] if is_right else ["received out of order"])
