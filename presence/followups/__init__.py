"""Follow-ups: so many seconds after a user went offline, unless he came back, do this.

Rules are in the settings (see `presence.rules`); servers, or ``presence followups run``, turn the wheel. What
is due comes out of a stream, at least once to each group, and each follow-up has an id by which to know it::

    from presence.followups import FollowUp, due_sync

    with due_sync("redis://localhost:6379", group="mail", consumer="worker-1") as followups:
        for followup in followups:  # acknowledged when the loop comes round
            match followup:
                case FollowUp(name="we-miss-you", uid=uid):
                    print("mail to", uid, followup.id)

For one user, once::

    from presence.followups import FollowUps

    with FollowUps("redis://localhost:6379") as followups:
        added = followups.add("ann", after=3600, name="cart", payload="order 17")
        print(followups.of("ann"))
        followups.cancel(added.id)

The page is `presence/docs/followups.md`.
"""

from presence.followups.planned import Added, FollowUps, Pending
from presence.followups.reading import FollowUp, due, due_sync
from presence.rules import Rule
from presence.subscriber.events import Gap

__all__ = ["Added", "FollowUp", "FollowUps", "Gap", "Pending", "Rule", "due", "due_sync"]
