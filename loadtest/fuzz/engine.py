"""The process in which the fuzzer works: `python -m loadtest.fuzz.engine TARGET FINDINGS [FLAG…] [CORPUS…]`.

Atheris changes the bytecode of what it watches as that is imported, and ends the process by itself; hence a
process of its own, which imports nothing of the project before. Flags and corpora are libFuzzer's.
"""

import gc
import importlib
import sys
from pathlib import Path
from typing import Final

import atheris

from loadtest.fuzz.findings import Catcher

WATCHED: Final = {"codec": "protocol", "session": "presence"}
"""Each target's package whose branches guide the fuzzer."""

GARBAGE: Final = 500_000  # objects; stories break their own circles, and looking for more takes a tenth


def main(arguments: list[str]) -> None:
    """Fuzz; does not return."""
    target, into, *rest = arguments
    with atheris.instrument_imports(include=[WATCHED[target]]):
        module = importlib.import_module(f"loadtest.fuzz.{target}")
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    atheris.Setup([sys.argv[0], *rest], Catcher(module.run, Path(into)))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
