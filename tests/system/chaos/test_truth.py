"""Whose session an event names; when what was due is due after troubles; what a group was never given."""

from tests.system.chaos.bounds import postponed
from tests.system.chaos.collector import lost_by_group
from tests.system.chaos.plan import ChaosFaultKind
from tests.system.chaos.truth import PACKETS_KEPT, DeviceLogin, Trouble, User


def test_a_session_is_known_by_its_name() -> None:
    user = User("ann")
    user.logins += [DeviceLogin(0, False, 1.0, 1.1, "s1"), DeviceLogin(1, False, 2.0, 2.1, "s2")]
    assert user.find_login("s1", 3.0) is user.logins[0]
    assert user.find_login("s3", 3.0) is None


def test_a_name_that_is_new_is_that_of_a_login_without_an_answer() -> None:
    user = User("ann")
    user.logins += [DeviceLogin(0, False, 1.0, 1.1, "s1"), DeviceLogin(1, True, 2.0)]
    assert user.find_login("s2", 1.5) is None
    assert user.find_login("s2", 2.5) is user.logins[1]
    assert user.find_login("s3", 2.5) is None


def test_an_answer_that_comes_late_knows_better() -> None:
    user = User("ann")
    user.logins += [DeviceLogin(0, True, 1.0), DeviceLogin(0, True, 2.0)]
    assert user.find_login("s1", 3.0) is user.logins[0]
    user.logins[1].granted_at, user.logins[1].session = 4.0, "s1"
    assert user.find_login("s1", 5.0) is user.logins[1]


def test_of_the_beats_the_latest_are_kept() -> None:
    login = DeviceLogin(0, False, 0.0)
    for beat in range(1000):
        login.record_packet(float(beat))
    assert login.packets[-1] == 999.0
    assert PACKETS_KEPT <= len(login.packets) < 2 * PACKETS_KEPT


def test_without_trouble_nothing_is_put_off() -> None:
    assert postponed(10.0, [Trouble(ChaosFaultKind.STOP, 0, 1.0, 4.0)], after_s=5.0) == 10.0


def test_troubles_whose_traces_touch_put_off_one_after_the_other() -> None:
    troubles = [
        Trouble(ChaosFaultKind.STOP, 0, 9.0, 12.0),
        Trouble(ChaosFaultKind.STOP, 0, 16.0, 18.0),
        Trouble(ChaosFaultKind.STOP, 0, 24.0, 25.0),
    ]
    assert postponed(10.0, troubles, after_s=5.0) == 23.0


def test_an_entry_that_the_group_was_not_given_is_lost() -> None:
    ids = {(0, "1-0"): 1.0, (0, "2-0"): 2.0}
    assert lost_by_group(ids, {(0, "1-0"): 1.5}, [], path=3) == [(0, "2-0")]


def test_what_redis_forgot_before_it_was_read_is_not_the_groups_loss() -> None:
    flush = Trouble(ChaosFaultKind.FLUSH, 0, 2.5, 2.5)
    assert lost_by_group({(0, "2-0"): 2.0, (0, "9-0"): 9.0}, {}, [flush], path=3) == [(0, "9-0")]


def test_a_path_in_trouble_puts_the_group_behind() -> None:
    troubles = [
        Trouble(ChaosFaultKind.PATH_HOLE, 3, 10.0, 20.0),
        Trouble(ChaosFaultKind.FLUSH, 0, 21.0, 21.0),
    ]
    ids = {(0, "1-0"): 6.0, (0, "2-0"): 11.0}
    assert lost_by_group(ids, {}, troubles, path=3) == [(0, "1-0")]
    assert lost_by_group(ids, {}, troubles, path=2) == [(0, "1-0"), (0, "2-0")]
