"""``python -m tests.fuzz codec|session --runs N``: coverage-guided fuzzing, by atheris.

Inputs come from the corpus in `tests/fuzz/corpus`, and an input that takes a new path through the code is
mutated further. The first input that fails ends the run, with a traceback and a status other than 0, and is
left in the directory of findings. ``--replay`` tries the inputs of the corpora only; under ``coverage run
--branch`` that shows what they reach. Without atheris (extra ``full-tier``, on Linux) it exits with 2.
"""

import argparse
import gc
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple


class FuzzTarget(NamedTuple):
    """The target of fuzzing.

    Attributes:
        watched: the package whose branches guide the fuzzer.
        bytes_max: of an input: longer ones take more time and seldom another path.
    """

    watched: str
    bytes_max: int


TARGETS: Final = {"codec": FuzzTarget("presence.protocol", 1024), "session": FuzzTarget("presence", 128)}
SEEDS: Final = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"
FINDINGS: Final = Path(tempfile.gettempdir()) / "fuzz-findings"
HANG_S: Final = 20  # a run of a millisecond that takes so long hangs, however busy the machine is
GARBAGE: Final = 500_000  # objects; runs break their own cycles, and frequent searches would take a tenth


def inputs(corpora: Iterable[Path]) -> list[bytes]:
    """Return the inputs of some corpora, without duplicates, shortest first.

    Args:
        corpora: folders with one file per input, like the fuzzer's, or files with one input per line, as
            hexadecimal digits.
    """
    found: set[bytes] = set()
    for corpus in corpora:
        if corpus.is_dir():
            found.update(path.read_bytes() for path in corpus.iterdir() if path.is_file())
        else:
            found.update(map(bytes.fromhex, corpus.read_text().splitlines()))
    return sorted(found, key=lambda data: (len(data), data))


def fuzz(target: str, arguments: list[str]) -> None:
    """Fuzz, with arguments of libFuzzer. Does not return: atheris ends the process."""
    import atheris  # noqa: PLC0415 - Linux only

    with atheris.instrument_imports(include=[TARGETS[target].watched]):
        module = importlib.import_module(f"tests.fuzz.{target}")
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    # A merge runs this again, in the shell's way.
    program = f"{sys.executable} -m tests.fuzz {target} --seeds {os.devnull}"
    atheris.Setup([program, *arguments], module.run)
    atheris.Fuzz()


def play(given: argparse.Namespace, folder: Path, more: list[str]) -> int:
    """Fuzz in a new process, or find the fewest inputs with the same coverage; return its status."""
    corpora = [given.corpus or folder / "corpus", folder / "seeds"]
    for each in (*corpora, folder / "kept", given.findings):
        each.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs([given.seeds or SEEDS / f"{given.target}.hex"])):
        (folder / "seeds" / str(number)).write_bytes(data)
    arguments = [f"-max_len={TARGETS[given.target].bytes_max}", f"-timeout={HANG_S}"]
    arguments.append(f"-artifact_prefix={given.findings}/")
    if given.keep:
        arguments.append("-merge=1")
        corpora.insert(0, folder / "kept")
    else:
        arguments += [f"-seed={given.seed}", f"-runs={given.runs or -1}", f"-max_total_time={given.seconds}"]
    if not (pid := os.fork()):
        fuzz(given.target, [*arguments, *map(str, corpora), *more])
    _, status = os.waitpid(pid, 0)
    if given.keep:
        kept = inputs([folder / "kept"])
        given.keep.write_text("".join(f"{data.hex()}\n" for data in kept))
    return os.waitstatus_to_exitcode(status)


def parse(words: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and those of libFuzzer."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("target", choices=TARGETS)
    add("--runs", type=int, default=0, help="inputs to try; without it until --seconds are over")
    add("--seconds", type=int, default=0, help="to fuzz at most")
    add("--seed", type=int, default=1, help="of the fuzzer's choices")
    add("--corpus", type=Path, help="directory for inputs on new ways; kept, and begun with")
    add("--findings", type=Path, default=FINDINGS, help="directory for the input that failed")
    add("--keep", type=Path, metavar="FILE", help="write the fewest inputs that reach as much, and end")
    add("--seeds", type=Path, help="inputs to begin with, besides; else those of the repository")
    add("--replay", action="store_true", help="try the inputs that are there, and end")
    given, more = parser.parse_known_args(words)
    if not (given.runs or given.seconds or given.keep or given.replay or more):
        parser.error("give --runs, --seconds, --keep or --replay")
    return given, more


def main(words: list[str] | None = None) -> int:
    """Do what the options say."""
    given, more = parse(words)
    if given.replay:
        run = importlib.import_module(f"tests.fuzz.{given.target}").run
        for data in inputs([SEEDS / f"{given.target}.hex", *([given.corpus] if given.corpus else [])]):
            run(data)
        return 0
    if importlib.util.find_spec("atheris") is None:
        print("tests.fuzz: atheris is missing: pip install -e '.[full-tier]', on Linux", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        status = play(given, Path(folder), more)
    print("tests.fuzz: " + ("FAILED" if status else "passed"))
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
