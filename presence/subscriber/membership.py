"""Who reads in a group, and how what it does not acknowledge is treated."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Membership:
    """Which consumer of which group, and how it treats what is not acknowledged.

    Attributes:
        group: the group; created when it is not there.
        consumer: this consumer's name. No two that live at once may share it; one that keeps its name over
            a restart goes on at once with what it had not acknowledged.
        max_deliveries: after so many an entry becomes a dead letter.
        claim_idle_s: an entry is taken from a consumer that was silent for so long; a handler must be
            faster, or others get the same event.
        prefetch: entries read ahead, over all shards.
    """

    group: str
    consumer: str
    max_deliveries: int = 5
    claim_idle_s: float = 60.0
    prefetch: int = 100

    def __post_init__(self) -> None:
        if not (self.group and self.consumer):
            raise ValueError("a consumer group needs the names of group and consumer")
        if self.max_deliveries < 1 or self.prefetch < 1 or self.claim_idle_s <= 0:
            raise ValueError("max_deliveries, prefetch and claim_idle_s must be above zero")
