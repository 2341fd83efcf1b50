"""Follow-ups: actions due a number of seconds after a user went offline, unless the user came back.

Rules are in the settings (see `presence.config.followup_rules`); servers, or ``presence followups run``, run
the scheduler. Due follow-ups are entries of a stream, delivered at least once to each group (`due`,
`due_sync`), and each has a unique id. `FollowUps` adds and cancels those of single users.

See `docs/followups.md`.
"""

from presence.config.followup_rules import Rule
from presence.followups.due_stream import FollowUp, due, due_sync
from presence.followups.planned import Added, FollowUps, PlannedFollowUp
from presence.subscriber.events import Gap

__all__ = ["Added", "FollowUp", "FollowUps", "Gap", "PlannedFollowUp", "Rule", "due", "due_sync"]
