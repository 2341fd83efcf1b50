"""What inputs reach: `python -m loadtest.fuzz.reach TARGET [--keep FILE] CORPUS…` prints it as JSON.

A process of its own, for branches are counted from the import on. With `--keep` the fewest and smallest
inputs that together reach every branch are written to a file, as the corpus to begin with next time.
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import coverage

from loadtest.fuzz.corpus import as_text, inputs

Arc = tuple[str, int, int]

EACH: Final = 4  # inputs of a minimal corpus that take the same way
TARGETS: Final = ("codec", "session")


def _source(name: str) -> str:
    """Return a module's file; it is not imported for that."""
    return str(Path(__file__).parents[2].joinpath(*name.split(".")).with_suffix(".py"))


def _target(name: str) -> tuple[ModuleType, coverage.Coverage]:
    """Import a target while its branches are counted."""
    meter = coverage.Coverage(
        data_file=None, branch=True, config_file=False, include=["*/protocol/*", "*/presence/*"]
    )
    meter.start()
    module = importlib.import_module(f"loadtest.fuzz.{name}")
    meter.stop()
    return module, meter


def minimal(module: ModuleType, meter: coverage.Coverage, corpus: Sequence[bytes]) -> list[bytes]:
    """Return inputs that together take every way from line to line that all take; short ones first.

    Each way is taken by some of them, as far as there are so many: what leads to it differs.
    """
    files = [_source(name) for name in module.MODULES]
    found: Counter[Arc] = Counter()
    kept = []
    for data in corpus:
        meter.erase()
        meter.start()
        module.run(data)
        meter.stop()
        measured = meter.get_data()
        arcs = {(file, *arc) for file in files for arc in measured.arcs(file) or ()}
        if any(found[arc] < EACH for arc in arcs):
            found.update(arcs)
            kept.append(data)
    return kept


def branches(module: ModuleType, meter: coverage.Coverage) -> dict[str, tuple[int, int]]:
    """Return of each module how many branches were taken, and how many it has."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        meter.json_report(outfile=report.name, include=[_source(name) for name in module.MODULES])
        files: dict[str, Any] = json.load(report)["files"]
    by_path = {str(Path(name).resolve()): each["summary"] for name, each in files.items()}
    summaries = {name: by_path[str(Path(_source(name)).resolve())] for name in module.MODULES}
    return {name: (each["covered_branches"], each["num_branches"]) for name, each in summaries.items()}


def main(words: list[str] | None = None) -> int:
    """Replay, and print what was reached."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fuzz.reach", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("corpora", nargs="+", type=Path, metavar="CORPUS")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="for the inputs that are worth keeping")
    given = parser.parse_args(words)
    module, meter = _target(given.target)
    corpus = inputs(given.corpora)
    meter.start()
    for data in corpus:
        module.run(data)
    meter.stop()
    reached = branches(module, meter)
    if given.keep is not None:
        corpus = minimal(module, meter, corpus)
        given.keep.write_text(as_text(corpus))
    print(json.dumps({"inputs": len(corpus), "bytes": sum(map(len, corpus)), "branches": reached}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
