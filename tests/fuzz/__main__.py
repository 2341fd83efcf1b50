"""``python -m tests.fuzz --runs N``: coverage-guided fuzzing of the codec, by atheris.

Inputs come from `tests/fuzz/corpus.hex`, and an input that takes a new path through the code is mutated
further. The first input that fails ends the run, with a traceback and a status other than 0, and is
left in the directory of findings. ``--replay`` tries the inputs that are there only; under ``coverage run
--branch`` that shows what they reach. Without atheris (extra ``full-tier``, Linux) it exits with 2.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).with_name("corpus.hex")
WATCHED: Final = "presence.protocol"  # the package whose branches guide the fuzzer
MAX_INPUT_BYTES: Final = 1024  # longer inputs take more time and seldom another path
FINDINGS: Final = Path(tempfile.gettempdir()) / "fuzz-findings"
HANG_S: Final = 20  # a run of a millisecond that takes so long hangs, however busy the machine is


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


def fuzz(arguments: list[str]) -> None:
    """Fuzz, with arguments of libFuzzer. Does not return: atheris ends the process."""
    import atheris  # noqa: PLC0415 - Linux only

    with atheris.instrument_imports(include=[WATCHED]):
        codec = importlib.import_module("tests.fuzz.codec")
    # A merge runs this again, in the shell's way.
    program = f"{sys.executable} -m tests.fuzz --seeds {os.devnull}"
    atheris.Setup([program, *arguments], codec.run)
    atheris.Fuzz()


def play(given: argparse.Namespace, folder: Path, more: list[str]) -> int:
    """Fuzz in a new process, or find the fewest inputs with the same coverage; return its status."""
    corpora = [given.corpus or folder / "corpus", folder / "seeds"]
    for each in (*corpora, folder / "kept", given.findings):
        each.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(inputs([given.seeds])):
        (folder / "seeds" / str(number)).write_bytes(data)
    arguments = [f"-max_len={MAX_INPUT_BYTES}", f"-timeout={HANG_S}"]
    arguments.append(f"-artifact_prefix={given.findings}/")
    if given.keep:
        arguments.append("-merge=1")
        corpora.insert(0, folder / "kept")
    else:
        arguments += [f"-seed={given.seed}", f"-runs={given.runs or -1}", f"-max_total_time={given.seconds}"]
    if not (pid := os.fork()):
        fuzz([*arguments, *map(str, corpora), *more])
    _, status = os.waitpid(pid, 0)
    if given.keep:
        kept = inputs([folder / "kept"])
        given.keep.write_text("".join(f"{data.hex()}\n" for data in kept))
    return os.waitstatus_to_exitcode(status)


def parse(words: list[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and those of libFuzzer."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    add = parser.add_argument
    add("--runs", type=int, default=0, help="inputs to try; without it until --seconds are over")
    add("--seconds", type=int, default=0, help="to fuzz at most")
    add("--seed", type=int, default=1, help="of the fuzzer's choices")
    add("--corpus", type=Path, help="directory for inputs on new ways; kept, and begun with")
    add("--findings", type=Path, default=FINDINGS, help="directory for the input that failed")
    add("--keep", type=Path, metavar="FILE", help="write the fewest inputs that reach as much, and end")
    add("--seeds", type=Path, default=CORPUS, help="inputs to begin with, besides")
    add("--replay", action="store_true", help="try the inputs that are there, and end")
    given, more = parser.parse_known_args(words)
    if not (given.runs or given.seconds or given.keep or given.replay or more):
        parser.error("give --runs, --seconds, --keep or --replay")
    return given, more


def main(words: list[str] | None = None) -> int:
    """Do what the options say."""
    given, more = parse(words)
    if given.replay:
        run = importlib.import_module("tests.fuzz.codec").run
        for data in inputs([given.seeds, *([given.corpus] if given.corpus else [])]):
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
