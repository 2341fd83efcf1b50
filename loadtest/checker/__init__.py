"""The promises as rules about what clients did and what the streams hold: pure.

The simulation and the runs on real processes use the same rules; they differ only in their source of truth.

doubled    The events of a user alternate, and each offline event names the entry id of its online event. What
           Redis has forgotten is forgotten here too (`periods`).
risen      A session whose end was told never comes online again, unless Redis forgot the end (`periods`).
disorder   Entry ids of a stream rise, whatever Redis forgets (`periods`).
early      A session ends only for a reason that its client gave, and not before it gave it (`endings`).
false      No offline event of a user one of whose sessions lives, and of which Redis has to know (`endings`).
converged  Records, nodes and clients agree, and so does the last event of each user (`comparison`).
"""

from typing import NamedTuple


class Broken(NamedTuple):
    """A broken promise: the rule, and what happened."""

    rule: str
    text: str
