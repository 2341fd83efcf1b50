"""The table of a run."""

import statistics

from loadtest.followups.play import Outcome, Plan


def table(plan: Plan, outcome: Outcome) -> str:
    """Return what came of a run in Markdown."""
    late = sorted(outcome.verdict.late_ms) or [0]
    p99 = late[min(len(late) - 1, int(len(late) * 0.99))]
    by_id = len({*outcome.handled})
    killed = outcome.kills
    columns = {
        "users who go": f"{plan.users:,}",
        "back in time": f"{plan.back:,}",
        "kill -9 of workers": killed.workers,
        "of all of the server": killed.servers,
        "of runners": killed.runners,
        "of Redis": killed.redis,
        "follow-ups in the stream": f"{len(outcome.told):,}",
        "handled, by id": f"{by_id:,}",
        "handled again": len(outcome.handled) - by_id,
        "ms after due: p50 / p99 / max": f"{statistics.median(late):.0f} / {p99} / {late[-1]}",
        "promises": "; ".join(outcome.broken) or "kept",
    }
    lines = (columns, ["---"] * len(columns), columns.values())
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
