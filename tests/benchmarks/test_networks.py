"""The model of bad networks, and how offline events are judged."""

from random import Random

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteStream

from benchmarks.networks.lossy_link import LossyLink, Network, Way
from benchmarks.networks.phone import BUFFERED_PIECES, PhoneRecord, PhoneStream
from benchmarks.networks.verdict import NetworkOutcome, OfflineMoment, TimeoutSetting, failures, judge

CLEAN = Network("clean", 0.05, 0.0, 1000.0)
DEFAULT = TimeoutSetting(30, 5)


def link(network: Network, **blackouts: tuple[float, float]) -> LossyLink:
    made = LossyLink(network, 0.0, Random(7))
    made.blackouts += blackouts.values()
    return made


def test_a_piece_takes_the_latency_and_its_share_of_the_bandwidth() -> None:
    clean = link(CLEAN)
    assert clean.arrives_at(Way.UP, 10.0, 100, after=0) == pytest.approx(10.15)
    assert clean.arrives_at(Way.UP, 10.0, 100, after=0) == pytest.approx(10.25)  # behind the first
    assert clean.arrives_at(Way.DOWN, 10.0, 100, after=0) == pytest.approx(10.15)
    assert clean.connects_at(10.0) == pytest.approx(10.1)


def test_what_is_sent_in_a_blackout_is_sent_again_after_growing_pauses() -> None:
    dark = link(CLEAN, only=(10.0, 12.0))
    # 0.3, 0.9 and 2.1 s after the first time
    assert dark.arrives_at(Way.UP, 10.0, 0, after=0) == pytest.approx(12.15)
    assert dark.connects_at(10.5) == pytest.approx(13.6)  # 1 and 3 s later
    assert dark.arrives_at(Way.UP, 12.0, 0, after=0) == pytest.approx(12.05)


def test_pieces_of_a_connection_arrive_in_order() -> None:
    dark = link(CLEAN, only=(10.0, 12.0))
    first = dark.arrives_at(Way.UP, 10.0, 0, after=0)
    assert dark.arrives_at(Way.UP, 12.0, 0, after=first) == first


def test_blackouts_are_as_frequent_and_as_long_as_the_network_says() -> None:
    made = link(Network("dark", 0.05, 0.0, 1000.0, blackout_every_s=10, blackout_s=(1, 3)))
    made.blackout_end(20_000)
    lengths = [end - begin for begin, end in made.blackouts]
    assert len(lengths) == pytest.approx(20_000 / 12, rel=0.1)
    assert min(lengths) >= 1
    assert max(lengths) <= 3


def test_lost_pieces_arrive_late() -> None:
    lossy = link(Network("lossy", 0.05, 0.0, 1e6, loss=0.5))
    late = sum(lossy.arrives_at(Way.UP, moment, 0, after=0) > moment + 0.1 for moment in range(1000))
    assert late == pytest.approx(500, abs=60)


def record(*blackouts: tuple[float, float], ended_at: float = 1000.0, is_dead: bool = True) -> PhoneRecord:
    return PhoneRecord("ann", "clean", 0.0, ended_at, is_dead, logins=3, blackouts=[*blackouts])


def judged(phone: PhoneRecord, *offline_at: float) -> tuple[int, int, list[float]]:
    outcome = judge([phone], [OfflineMoment("ann", at) for at in offline_at], DEFAULT)["clean"]
    assert outcome.returns == 2
    assert outcome.hours == pytest.approx(phone.ended_at / 3600)
    return outcome.false, outcome.missed, outcome.delays_s


def test_an_offline_event_of_a_live_phone_is_false_unless_a_blackout_was_too_long() -> None:
    assert judged(record(), 500.0) == (1, 0, [])
    assert judged(record((480, 495)), 500.0) == (1, 0, [])
    assert judged(record((480, 499)), 500.0) == (0, 1, [])
    assert judged(record((400, 440)), 500.0) == (1, 0, [])
    assert judged(record((470, 480), (483, 495)), 500.0) == (0, 1, [])  # no time to return between


def test_the_death_of_a_phone_is_noticed_once() -> None:
    assert judged(record(), 1028.5) == (0, 0, [28.5])
    assert judged(record(is_dead=False), 1028.5) == (0, 0, [])


@pytest.mark.parametrize(
    ("phone", "offline_at", "unnoticed"),
    [
        (record(), [], 1),
        (record(), [1028.5], 0),
        (record(), [1061.0], 1),  # too late
        (record(), [700.0], 0),  # it may have been offline when it died
        (record(is_dead=False), [], 0),
        (record(ended_at=1990.0), [], 0),  # the record ends before it is due
    ],
)
def test_a_dead_phone_without_an_offline_event_is_unnoticed(
    phone: PhoneRecord, offline_at: list[float], unnoticed: int
) -> None:
    events = [OfflineMoment("ann", at) for at in offline_at]
    assert judge([phone], events, DEFAULT, 2000.0)["clean"].unnoticed == unnoticed


def test_figures_are_not_valid_if_deaths_went_unnoticed_or_phones_are_missing() -> None:
    outcomes = {
        "clean": NetworkOutcome(phones=1, online=1, hours=1.0),
        "train": NetworkOutcome(online=1, hours=1, unnoticed=2),
        "3G": NetworkOutcome(phones=1, hours=1.0),
    }
    assert failures(outcomes, ["clean", "train", "3G", "lift"]) == [
        "lift: no phone was ever alive",
        "train: 2 dead phones have no offline event in time",
        "3G: no phone ever came online",
    ]


def test_a_phone_that_never_logged_in_was_not_online() -> None:
    stranger = record()
    stranger.logins = 0
    assert judge([stranger], [], DEFAULT)["clean"].online == 0
    assert judge([record()], [], DEFAULT)["clean"].online == 1


def test_a_moment_before_the_last_blackouts_is_looked_up() -> None:
    dark = link(CLEAN, first=(10.0, 12.0), second=(20.0, 22.0))
    ends = [dark.blackout_end(moment) for moment in (9.0, 11.0, 12.0, 15.0, 21.0, 30.0)]
    assert ends == [None, 12.0, None, None, 22.0, None]


class Flood(ByteStream):
    """A server that sends more than a phone may leave unread, and then waits."""

    def __init__(self) -> None:
        self.sent = 0

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        if self.sent > BUFFERED_PIECES:
            await anyio.sleep_forever()
        self.sent += 1
        return b"x"

    async def send(self, item: bytes) -> None:
        """What the phone sends does not matter."""

    async def send_eof(self) -> None:
        """Unused."""

    async def aclose(self) -> None:
        """The test is over."""


async def test_a_phone_that_does_not_read_loses_its_connection_and_no_piece_of_it() -> None:
    raw = Flood()
    async with anyio.create_task_group() as tasks:
        stream = PhoneStream(raw, link(Network("fast", 0.0, 0.0, 1e9)), tasks)
        while raw.sent <= BUFFERED_PIECES:
            await anyio.lowlevel.checkpoint()
        for _ in range(BUFFERED_PIECES):
            assert await stream.receive() == b"x"
        with pytest.raises(anyio.BrokenResourceError):
            await stream.receive()
        await stream.aclose()
        tasks.cancel_scope.cancel()
