"""All rows that were measured, in a file of JSON that a later run can add to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""A trial with its plan, and `report` and `verdict`, or `breaking`, or `error`."""


class Results:
    """Rows by what was played; a row that is measured anew takes the place of the old one.

    Attributes:
        machine: what the figures depend on.
    """

    def __init__(self, machine: dict[str, str]) -> None:
        self.machine = machine
        self._rows: dict[str, Row] = {}

    def add(self, row: Row) -> None:
        """Add a row."""
        what = "breaking" if "breaking" in row else row["fault"]
        self._rows[f"{row['kind']} {row['users']} {row['batched']} {what}"] = row

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def played(self, kind: str, users: int, *, batched: bool = False) -> Row | None:
        """Return the row of a run in which nothing was killed, if there is one that did not fail."""
        row = self._rows.get(f"{kind} {users} {batched} ")
        return row if row and "report" in row else None

    def killed(self, kind: str, fault: str) -> Row | None:
        """Return the row of a run with a fault."""
        found = [row for row in self if row["kind"] == kind and row["fault"] == fault and "report" in row]
        return found[-1] if found else None

    def breaking(self, kind: str, *, batched: bool = False) -> Row | None:
        """Return the row of the rate at which it breaks."""
        found = [row for row in self if "breaking" in row]
        return next((row for row in found if (row["kind"], row["batched"]) == (kind, batched)), None)

    def sizes(self) -> list[int]:
        """Return the sizes at which something was played with nothing killed."""
        return sorted({row["users"] for row in self if "report" in row and not row["fault"]})

    def errors(self) -> list[str]:
        """Return what went wrong, a line each."""
        lines = []
        for row in self:
            error = row.get("error") or row.get("breaking", {}).get("error")
            if error:
                lines.append(
                    " ".join(f"{row['kind']} at {row['users']:,} {row['fault']}".split()) + f": {error}"
                )
        return lines

    def write(self, path: Path) -> None:
        """Write all."""
        path.write_text(json.dumps({"machine": self.machine, "rows": list(self._rows.values())}, indent=1))


def read(path: Path) -> Results:
    """Return what was written."""
    found = json.loads(path.read_text())
    results = Results(found["machine"])
    for row in found["rows"]:
        results.add(row)
    return results
