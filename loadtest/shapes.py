"""Load that rises in steps, for locust: at which size does a server begin to be slow?"""

from typing import Any

from locust import LoadTestShape

from loadtest.scenario import stair


class Ramp(LoadTestShape):
    """Equal steps to ``--users`` within ``--run-time``; each is reached at ``--spawn-rate``.

    Args:
        options: locust's.

    Raises:
        ValueError: there is no run time.
    """

    abstract = True  # not for locust to find: the option decides
    use_common_options = True

    def __init__(self, options: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # locust's
        if not options.run_time:
            raise ValueError("--scenario ramp needs --run-time")
        self._users = options.num_users or 1
        self._rate = options.spawn_rate or 1
        self._run_s = float(options.run_time)

    def tick(self) -> tuple[int, float] | None:
        """Return how many users there should be now, and how fast to get there; None at the end."""
        elapsed_s: float = self.get_run_time()  # type: ignore[no-untyped-call] # locust's
        users = stair(elapsed_s, self._run_s, self._users)
        return None if users is None else (users, self._rate)
