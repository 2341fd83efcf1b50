"""``messages``: messages between random users, as many as the servers carry, and then half as many."""

import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from loadtest.outcome import failed_checks, percentile, print_progress, spread_ms
from loadtest.scenario_report import ScenarioReport, loaded_server
from presence.loadtest.client_loop import ClientLoop, LoopClient
from presence.protocol import Code, Kind
from tests.system.channel.message_judge import Received, SentMessage, judge

LOGIN_S = 30.0
SETTLE_S = 1.0  # after the logins, until Redis knows of all
LAST_ANSWERS_S = 10.0
SEND_TICK_S = 0.002
MAX_MESSAGES_PER_SEND = 4  # messages to one user in one go, at most, where as many as possible are sent
MIN_RATE = 5000.0
MAX_P99_MS = 100.0
TWO_DEVICES = 10  # one in so many users has a second device
ABSENT = 50  # and one in so many never logs in
BEAT_S = 10.0
PADDING = "x" * 100  # a body is about as long as a line of a chat
FIRST_ID = 1000  # of a packet; the message's number is added


@dataclass(frozen=True)
class MessagesPlan:
    """The size of the run, and what is promised."""

    users: int = 1000
    messages: int = 100_000  # sent at full speed
    window: int = 512  # of these, unanswered at the same time
    rate: float = MIN_RATE / 2  # messages per second after that, evenly
    seconds: float = 20.0  # of the steady rate
    movers: int = 100  # users who often reconnect, mostly to another worker
    move_each_s: float = 4.0  # the interval of each mover
    workers: int = 3
    shards: int = 1
    rate_min: float = MIN_RATE
    p99_max_ms: float = MAX_P99_MS


class MessageLedger:
    """All messages of a run, by number.

    Attributes:
        answered_at: when the last answer came.
        connections: how many there were so far; each gets the next number.
        endings: connections that the server ended without cause, by code; 0: broken.
    """

    def __init__(self) -> None:
        self.sent: list[SentMessage] = []
        self.endings: Counter[int] = Counter()
        self.unanswered = self.connections = 0
        self.answered_at = 0.0

    def answered(self, number: int, payload: Mapping[str, Any], now: float) -> None:
        message = self.sent[number]
        self.unanswered -= not message.answers
        message.answers += 1
        message.delivered, message.code = payload.get("delivered", 0), payload.get("code", 0)
        message.answered_s = now - message.due
        self.answered_at = now

    def received(self, number: int, now: float) -> None:
        if 0 <= number < len(self.sent) and self.sent[number].received_s < 0:
            self.sent[number].received_s = now - self.sent[number].due


class Correspondent(LoopClient):
    """A user who sends and receives.

    Attributes:
        inbox: the received messages, in order.
    """

    def __init__(self, loop: ClientLoop, uid: str, device: str, ledger: MessageLedger) -> None:
        super().__init__(loop, uid, device)
        self.inbox: list[Received] = []
        self.was_always_connected = True
        self._ledger = ledger
        self._connection = self._unanswered = 0
        self._is_moving = False

    @property
    def can_send(self) -> bool:
        """Whether it is logged in, and not about to move."""
        return self.is_logged_in and not self._is_moving

    def send_messages(self, recipient: str, count: int, due: float) -> None:
        """Send some messages to one user in one write."""
        frames, sent = bytearray(), self._ledger.sent
        for _ in range(count):
            packet = [Kind.MESSAGE, FIRST_ID + len(sent), {"to": recipient, "body": [len(sent), PADDING]}]
            sent.append(SentMessage(self.uid, recipient, connection=self._connection, due=due))
            body = msgpack.packb(packet)
            frames += len(body).to_bytes(4, "big") + body
        self._unanswered += count
        self._ledger.unanswered += count
        self.send(bytes(frames))

    def on_login(self, payload: Mapping[str, Any], now: float) -> None:
        self._ledger.connections += 1
        self._connection = self._ledger.connections

    def move(self) -> None:
        """Drop the connection once all messages are answered, and reconnect soon."""
        if self.is_logged_in:
            self._is_moving, self.was_always_connected = True, False
            self._finish_move()

    def on_packet(self, kind: int, id: int | None, payload: Mapping[str, Any], now: float) -> None:
        if kind == Kind.DELIVER:
            number = payload["body"][0]
            self.inbox.append(Received(number, payload["from"]))
            self._ledger.received(number, now)
        elif id is not None and id >= FIRST_ID:
            self._unanswered -= 1
            self._ledger.answered(id - FIRST_ID, payload, now)
            self._finish_move()

    def on_disconnect(self, payload: Mapping[str, Any] | None, now: float) -> None:
        code = payload["code"] if payload else 0
        # Two logins of a device within a stall of a worker have no known order: one is ended, and returns.
        if code != Code.CLOSED or self.was_always_connected:
            self._ledger.endings[code] += 1
        self._unanswered, self.was_always_connected, self._is_moving = 0, False, False

    def _finish_move(self) -> None:
        if self._is_moving and not self._unanswered and self.is_logged_in:
            self._is_moving = False
            self.close(reset=random.random() < 0.5)
            self.loop.call_at(time.monotonic() + random.uniform(0.0, 0.5), self.connect)


class MessagesRun:
    def __init__(self, plan: MessagesPlan, seed: int, loop: ClientLoop) -> None:
        self._plan, self._loop = plan, loop
        self._random = random.Random(seed)
        self.ledger = MessageLedger()
        self._uids = [f"user-{number}" for number in range(plan.users)]
        self.absent = frozenset(self._uids[ABSENT - 1 :: ABSENT])
        self.people = [
            Correspondent(loop, uid, device, self.ledger)
            for number, uid in enumerate(self._uids)
            if uid not in self.absent
            for device in (("", "pad") if number % TWO_DEVICES == 0 else ("",))
        ]
        self._movers = self.people[: plan.movers]
        self.moves = 0
        self._is_moving = self._is_all_sent = False

    def run(self) -> tuple[float, int]:
        """Return how many messages per second were delivered, and how many were sent at full speed."""
        loop, plan, ledger = self._loop, self._plan, self.ledger
        loop.log_in(self.people, LOGIN_S)
        loop.run(SETTLE_S)
        self._is_moving = True
        self._move_next()
        started = time.monotonic()
        self._send_window()
        loop.run(600.0, lambda: len(ledger.sent) >= plan.messages)
        loop.run(LAST_ANSWERS_S, lambda: not ledger.unanswered)
        seconds, fast = ledger.answered_at - started, len(ledger.sent)
        rate = sum(message.delivered > 0 for message in ledger.sent) / seconds
        print_progress(f"messages: {fast:,} in {seconds:.1f} s, {rate:,.0f} a second were handed")
        self._send_evenly(time.monotonic(), time.monotonic())
        loop.run(plan.seconds + LAST_ANSWERS_S, lambda: self._is_all_sent)
        self._is_moving = False
        loop.run(LAST_ANSWERS_S, lambda: not ledger.unanswered)
        loop.run(1.0)  # what is handed may be on its way
        return rate, fast

    def _send_window(self) -> None:
        """Send while fewer than `window` messages wait for their answers."""
        ledger, plan, now = self.ledger, self._plan, time.monotonic()
        while ledger.unanswered < plan.window and len(ledger.sent) < plan.messages:
            count = min(self._random.randint(1, MAX_MESSAGES_PER_SEND), plan.messages - len(ledger.sent))
            self._pick_sender().send_messages(self._random.choice(self._uids), count, now)
        if len(ledger.sent) < plan.messages:
            self._loop.call_at(now + SEND_TICK_S, self._send_window)

    def _send_evenly(self, started: float, sent_until: float) -> None:
        """Send what is due, however slow the servers are."""
        now, plan = time.monotonic(), self._plan
        until = min(now, started + plan.seconds)
        for number in range(int((sent_until - started) * plan.rate), int((until - started) * plan.rate)):
            self._pick_sender().send_messages(
                self._random.choice(self._uids), 1, started + number / plan.rate
            )
        self._is_all_sent = until >= started + plan.seconds
        if not self._is_all_sent:
            self._loop.call_at(now + SEND_TICK_S, lambda: self._send_evenly(started, until))

    def _pick_sender(self) -> Correspondent:
        while not (sender := self._random.choice(self.people)).can_send:
            pass
        return sender

    def _move_next(self) -> None:
        if self._is_moving and self._movers:
            self._random.choice(self._movers).move()
            self.moves += 1
            pause_s = self._plan.move_each_s / len(self._movers)
            self._loop.call_at(time.monotonic() + self._random.expovariate(1 / pause_s), self._move_next)


def messages(plan: MessagesPlan, seed: int) -> ScenarioReport:
    with loaded_server("--workers", str(plan.workers), "--shards", str(plan.shards), beat_s=BEAT_S) as stage:
        play = MessagesRun(plan, seed, stage.loop)
        rate, fast = play.run()
        load = stage.loop.describe_load()
    sent, moved = play.ledger.sent, {each.uid for each in play.people if not each.was_always_connected}
    stayed = Counter(each.uid for each in play.people if each.uid not in moved)
    inboxes = {(each.uid, each.device): each.inbox for each in play.people}
    verdict = judge(sent, inboxes, stayed, play.absent)
    lost = verdict.lost
    reasons = ", ".join(f"{count:,} {Code(code).reason}" for code, count in lost.items())
    outcomes = verdict.delivered + verdict.refused + lost.total()
    answered = [each.answered_s for each in sent[fast:] if each.answered_s >= 0]
    received = [each.received_s for each in sent[fast:] if each.received_s >= 0]
    report = ScenarioReport(
        f"messages: {plan.users:,} users, {plan.workers} workers, {plan.movers} users moving"
    )
    report.rows = {
        "sent": f"{len(sent):,}",
        "handed + refused + reported lost": f"{verdict.delivered:,} + {verdict.refused:,} + {lost.total():,} "
        f"= {outcomes:,} ({reasons or 'none lost'})",
        "received by devices": f"{verdict.received:,}",
        "handed to whoever moved, and missed": f"{verdict.missed:,}",
        "moves": f"{play.moves:,}",
        f"as fast as may be, {plan.window} waiting": f"{rate:,.0f} handed a second, of {fast:,}",
        f"at {plan.rate:,.0f} a second, to the receipt": spread_ms(received),
        f"at {plan.rate:,.0f} a second, to the answer": spread_ms(answered),
        "the load itself": load,
    }
    report.metrics = {
        "handed": verdict.delivered,
        "refused": verdict.refused,
        "moves": play.moves,
        "rate": rate,
    }
    p99_ms = max(percentile(times, 0.99) * 1000 for times in (received, answered))
    report.broken = [
        *verdict.broken,
        *stage.server.failures(),
        *failed_checks(
            (rate < plan.rate_min, f"only {rate:,.0f} messages a second, promised {plan.rate_min:,.0f}"),
            (p99_ms > plan.p99_max_ms, f"p99 {p99_ms:.0f} ms, {plan.p99_max_ms:.0f} promised"),
            (outcomes != len(sent), "handed + refused + reported lost is not what was sent"),
            (play.ledger.endings, f"connections ended by the server: {dict(play.ledger.endings)}"),
        ),
    ]
    return report
