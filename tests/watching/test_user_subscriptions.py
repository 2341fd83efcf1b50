"""Subscriptions to users: requests and confirmations that cross each other."""

from presence.watching.user_subscriptions import UserSubscriptions


def active(*uids: str) -> UserSubscriptions:
    subscriptions = UserSubscriptions(uids)
    subscriptions.next(99)
    for uid in uids:
        assert subscriptions.subscribed(uid)
    return subscriptions


def test_those_wanted_at_the_beginning_are_subscribed_to_a_few_at_a_time() -> None:
    subscriptions = UserSubscriptions(["ann", "bob", "cy"])
    asked = [subscriptions.next(2)[0] for _ in range(3)]
    assert [len(each) for each in asked] == [2, 1, 0]
    assert sorted(asked[0] + asked[1]) == sorted(subscriptions.all()) == ["ann", "bob", "cy"]


def test_a_subscription_is_active_when_it_is_confirmed() -> None:
    subscriptions = UserSubscriptions(["ann"])
    assert not subscriptions.subscribed("ann"), "it was not requested yet"
    subscriptions.next(99)
    assert not subscriptions.is_active("ann")
    assert subscriptions.subscribed("ann")
    assert subscriptions.is_active("ann")


def test_a_user_dropped_before_the_request_is_not_subscribed_to() -> None:
    subscriptions = UserSubscriptions(["ann"])
    subscriptions.drop("ann")
    assert subscriptions.next(99) == ([], [])


def test_a_user_dropped_before_the_confirmation_is_unsubscribed_after_it() -> None:
    subscriptions = UserSubscriptions(["ann"])
    subscriptions.next(99)
    subscriptions.drop("ann")
    assert subscriptions.next(99) == ([], [])
    assert not subscriptions.subscribed("ann")
    assert subscriptions.next(99) == ([], ["ann"])
    assert subscriptions.all() == []


def test_a_user_dropped_and_wanted_again_between_two_requests_stays_subscribed_to() -> None:
    subscriptions = active("ann")
    subscriptions.drop("ann")
    subscriptions.want("ann")
    assert subscriptions.next(99) == ([], [])
    assert subscriptions.is_active("ann")


def test_a_user_wanted_again_while_leaving_is_subscribed_to_after_that() -> None:
    subscriptions = active("ann")
    subscriptions.drop("ann")
    subscriptions.next(99)
    subscriptions.want("ann")
    assert subscriptions.next(99) == ([], [])
    assert not subscriptions.is_active("ann")
    subscriptions.unsubscribed("ann")
    assert subscriptions.next(99) == (["ann"], [])
