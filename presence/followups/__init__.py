"""Follow-ups: so many seconds after a user went offline, unless he came back, do this.

Rules are in the settings (see `presence.config.followup_rules`); servers, or ``presence followups run``, turn
the wheel. What is due comes out of a stream, at least once to each group (`due`, `due_sync`), and each
follow-up has an id by which to know it. `FollowUps` adds and cancels those of single users.

The page is `docs/followups.md`.
"""

from presence.config.followup_rules import Rule
from presence.followups.consumer import FollowUp, due, due_sync
from presence.followups.planned import Added, FollowUps, PlannedFollowUp
from presence.subscriber.events import Gap

__all__ = ["Added", "FollowUp", "FollowUps", "Gap", "PlannedFollowUp", "Rule", "due", "due_sync"]
