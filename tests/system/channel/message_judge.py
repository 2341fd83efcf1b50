"""Compares the outcome of each message with who received it: pure, so that tests can make up broken runs.

Each message has exactly one outcome: it was delivered to a number of sessions, refused because the recipient
is offline, or reported to the sender as lost or possibly lost. A device receives a message once at most, and
the messages of one connection in the order in which they were sent, over all of its own. (Two devices of one
sender are mostly on two servers, and it is unknown which wrote first.) Of a user who stayed connected more
is known: no message to them is refused, and what was delivered is received, by all of their devices.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loadtest.outcome import BrokenPromises
from presence.protocol import Code


@dataclass(slots=True)
class SentMessage:
    """A message; its number is its index among all that were sent."""

    sender: str
    recipient: str
    answers: int = 0  # how many there were; one is right
    delivered: int = 0  # to how many sessions, as the answer says
    code: int = 0  # of the error that answered it, or 0
    connection: int = 0  # which of the sender's connections carried it
    due: float = 0.0  # when it was to be sent, monotonic seconds
    answered_s: float = -1.0  # from `due` to the answer; below 0: none came
    received_s: float = -1.0  # from `due` to the first receipt; below 0: none came


class Received(NamedTuple):
    """A message that a device received: its number, and its sender as the packet names it."""

    number: int
    sender: str


Receipts = Mapping[tuple[str, str], Sequence[Received]]
"""By uid and device, in the order in which they came."""


@dataclass
class MessageVerdict(BrokenPromises):
    """The outcomes of all messages."""

    delivered: int = 0
    refused: int = 0
    lost: Counter[int] = field(default_factory=Counter)  # reported as lost, or perhaps lost, by code
    received: int = 0  # by all devices
    missed: int = 0  # delivered to a user who moved meanwhile, and not received by all of the user's devices


def judge(
    sent: Sequence[SentMessage],
    receipts: Receipts,
    stayed: Mapping[str, int],
    absent: frozenset[str] = frozenset(),
) -> MessageVerdict:
    """Judge a finished run.

    Args:
        stayed: the number of devices of each user who was connected all the time.
        absent: users who never logged in.
    """
    verdict = MessageVerdict()
    received = _judge_receipts(verdict, sent, receipts)
    for number, message in enumerate(sent):
        _judge_message(verdict, number, message, received[number], stayed, absent)
    return verdict


def _judge_receipts(verdict: MessageVerdict, sent: Sequence[SentMessage], receipts: Receipts) -> Counter[int]:
    """Judge what each device received; return by how many devices each message was received."""
    received: Counter[int] = Counter()
    for (uid, device), messages in receipts.items():
        seen: set[int] = set()
        latest: dict[tuple[str, int], int] = {}
        for each in messages:
            number, sender = each
            story = (uid, device, each)
            if not 0 <= number < len(sent) or (sent[number].sender, sent[number].recipient) != (sender, uid):
                verdict.note("received what nobody sent", story)
                continue
            if number in seen:
                verdict.note("received twice", story)
                continue
            way = sender, sent[number].connection
            if number < latest.get(way, number):
                verdict.note("received out of order", (*story, latest[way]))
            latest[way] = max(number, latest.get(way, number))
            seen.add(number)
        received.update(seen)
    verdict.received = received.total()
    return received


def _judge_message(
    verdict: MessageVerdict,
    number: int,
    message: SentMessage,
    received: int,
    stayed: Mapping[str, int],
    absent: frozenset[str],
) -> None:
    story = f"message {number}: {message}, received by {received}"
    devices = stayed.get(message.recipient)
    if message.answers != 1:
        verdict.note("answered more than once" if message.answers else "never answered", story)
    elif message.code == Code.RECIPIENT_OFFLINE:
        verdict.refused += 1
        if received:
            verdict.note("refused, and received", story)
        if devices:
            verdict.note("refused though the recipient was connected", story)
    elif message.code:
        verdict.lost[message.code] += 1
        if message.code in (Code.BUSY, Code.RECIPIENT_DISCONNECTED) and received:
            verdict.note("said to be surely not delivered, and received", story)
    else:
        verdict.delivered += 1
        if not message.delivered:
            verdict.note("handed to nobody, and granted", story)
        if received > message.delivered:
            verdict.note("received by more than it was handed to", story)
        if message.recipient in absent:
            verdict.note("handed to somebody who was never there", story)
        if devices and message.delivered != devices:
            verdict.note("handed to another number of sessions than there are", story)
        if received < message.delivered:
            if devices:
                verdict.note("handed and not received", story)
            else:
                verdict.missed += 1
