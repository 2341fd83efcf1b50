"""Which users online a list has: conditions on their records."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from presence.protocol.constants import STATUSES
from presence.protocol.schema import class_complaint, uid_complaint

LISTED_STATUSES: Final = (*STATUSES, "unknown")
"""The statuses that can be asked for."""

_SPECIAL: Final = re.compile(r"[\\*?\[\]]")  # in patterns of Redis
_PLAIN: Final = re.compile(r"[\w.-]+", re.ASCII)  # JSON has these as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFilter:
    """The users online who meet all conditions that are given.

    Raises:
        ValueError: a value that no user can have.
    """

    uid_prefix: str | None = None  # what the uid begins with
    device_class: str | None = None  # of a session; with `node`, of the same one
    node: str | None = None  # that has a session
    status: str | None = None  # as states have it; ``invisible``: those that states say are invisible

    def __post_init__(self) -> None:
        checks = {
            "uid_prefix": uid_complaint,
            "device_class": class_complaint,
            "node": _node_complaint,
            "status": _status_complaint,
        }
        for name, complaint in checks.items():
            value = getattr(self, name)
            if value is not None and (what := complaint(value)):
                raise ValueError(f"{name.removeprefix('device_')} {what}")

    @property
    def pattern(self) -> str | None:
        """The pattern of the uids, for Redis; None for all."""
        return None if self.uid_prefix is None else _SPECIAL.sub(r"\\\g<0>", self.uid_prefix) + "*"

    def may_match(self, record: bytes) -> bool:
        """Whether a record may be one of a wanted user: a search is a tenth of the work of decoding it."""
        names = (self.device_class, self.node)
        return all(name is None or not _PLAIN.fullmatch(name) or name.encode() in record for name in names)

    def has_session(self, state: Mapping[str, Any]) -> bool:
        """Whether the user has a wanted session."""
        return any(
            self.device_class in (None, each.get("class")) and self.node in (None, each["node"])
            for each in state["sessions"]
        )

    def has_status(self, state: Mapping[str, Any]) -> bool:
        """Whether the user has the wanted status."""
        return self.status in (None, state["status"]) or (self.status == "invisible" and "invisible" in state)


def _node_complaint(node: object) -> str | None:
    return None if isinstance(node, str) and node and node.isprintable() else "is not the id of a node"


def _status_complaint(status: object) -> str | None:
    return None if status in LISTED_STATUSES else f"is none of {', '.join(LISTED_STATUSES)}"


ALL_USERS: Final = UserFilter()
