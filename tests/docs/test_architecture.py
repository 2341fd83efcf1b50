"""The page on architecture: its figures are those of the code, and no package is without its place."""

import pkgutil
import re
from pathlib import Path

import presence
from presence.aside import PATIENCE_S
from presence.cluster import BEATS_A_LEASE
from presence.config import SPECS
from presence.endings import SLICE
from presence.outbox import CHANGE_BYTES
from presence.relay import GATHER_S, PROBE_INTERVAL_S
from presence.settling import RETURN_SETTLE_S, SETTLE_S
from presence.shard_writer import BATCH_ITEMS
from presence.store.client import CALL_TIMEOUT_S
from presence.ticks import SLOTS_PER_TICK
from presence.transports.epoll import ANSWER_WINDOW_S
from tests.docs.pages import ROOT

TOP = Path(presence.__file__).parent
PAGE = (TOP / "docs" / "architecture.md").read_text("utf-8")
WORDS = " ".join(PAGE.split())


def test_its_figures_are_those_of_the_code() -> None:
    lease = SPECS["lease"].default
    assert isinstance(lease, float)
    for figure in (
        f"slices of {SLICE},",
        f"a batch of {BATCH_ITEMS}:",
        f"{CHANGE_BYTES} and its texts a change",
        f"within {1000 * ANSWER_WINDOW_S:g} ms",
        f"`batch_window_ms`, {SPECS['batch_window_ms'].default} ms",
        f"Within {1000 * GATHER_S:g} ms a batch",
        f"takes {CALL_TIMEOUT_S:g} s",
        f"(every {PROBE_INTERVAL_S:g} s)",
        f"ends wait for {RETURN_SETTLE_S:g} s",
        f"{SETTLE_S:g} s at most, nobody ends",
        f"every {lease / BEATS_A_LEASE:g} s (an eighth of `lease`)",
        f"given up after {PATIENCE_S:g} s",
    ):
        assert figure in WORDS, figure
    assert (SLOTS_PER_TICK, BEATS_A_LEASE) == (2, 8), "half a tick, an eighth of a lease"


def test_the_bounds_of_turns_are_those_of_the_code() -> None:
    bounds = re.findall(r"`((?:presence|protocol)[.\w]*)\.([A-Z_]+)` = ([\d.]+)", PAGE)
    assert len(bounds) > 20
    named = {(module, name): getattr(pkgutil.resolve_name(module), name) for module, name, _ in bounds}
    assert named == {(module, name): float(value) for module, name, value in bounds}


def test_no_package_is_without_a_place_on_it() -> None:
    packages = {path.parent.relative_to(ROOT) for path in TOP.glob("*/__init__.py")}
    assert len(packages) > 8
    shown = {"presence/demo"}  # a show of all the others
    assert sorted(str(path) for path in packages if f"`{path}/`" not in PAGE and str(path) not in shown) == []
