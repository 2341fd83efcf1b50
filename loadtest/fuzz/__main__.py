"""``python -m loadtest.fuzz codec|session --runs N``: coverage-guided fuzzing, by atheris.

Inputs come from the corpus in `tests/fuzz/corpus`, and whatever takes a new way through the code is mutated
further. Prints runs a second, findings and the share of branches that the inputs reach. An input for each
finding stays in the directory that is named. The exit status is 1 if there was any, 2 without atheris (the
``dev`` extra, on Linux).
"""

import argparse
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest.fuzz.corpus import inputs

TARGETS: Final = {"codec": 1024, "session": 128}
"""Bytes that an input has at most: more packets, or a longer story, take more time and seldom another way."""

SEEDS: Final = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"
_RUNS: Final = re.compile(r"^stat::number_of_executed_units:\s*(\d+)")
_CHATTER: Final = re.compile(r'stat::|INFO: |#\d+\s+(NEW|REDUCE|RELOAD)|".*" # Uses: |###### ')
_HANG_S: Final = 20  # a run of a millisecond that takes so long does not end, whatever else the machine does


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        runs: inputs that were tried.
        seconds: how long that took.
        cpu_s: processor time of it, for machines that have other work.
        status: how the fuzzer's process ended; not 0 if it broke down.
        findings: files with an input each.
        reach: what `loadtest.fuzz.reach` says.
    """

    runs: int
    seconds: float
    cpu_s: float
    status: int
    findings: list[Path]
    reach: dict[str, Any]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found, by a fuzzer that did its work."""
        return not self.findings and self.status == 0 and self.runs > 0


def fuzz(target: str, given: argparse.Namespace, corpus: Path, findings: Path) -> Result:
    """Fuzz in a process of its own, and see what was reached."""
    for each in (corpus, findings):
        each.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-seeds-") as seeds:
        for number, data in enumerate(inputs([SEEDS / f"{target}.hex"])):
            (Path(seeds) / str(number)).write_bytes(data)
        return _fuzz(target, given, [str(corpus), seeds], findings)


def _fuzz(target: str, given: argparse.Namespace, corpora: list[str], findings: Path) -> Result:
    flags = [
        f"-seed={given.seed}",
        f"-max_len={TARGETS[target]}",
        f"-timeout={_HANG_S}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        *([f"-runs={given.runs}"] if given.runs else []),
        *([f"-max_total_time={given.seconds}"] if given.seconds else []),
    ]
    command = [sys.executable, "-m", "loadtest.fuzz.engine", target, str(findings), *flags, *corpora]
    begun, used, runs = time.monotonic(), _cpu_s(), 0
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        text=True,
        errors="replace",
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := _RUNS.match(line):
                runs = int(found[1])
            elif not _CHATTER.match(line):
                sys.stderr.write(line)
    seconds, cpu_s = time.monotonic() - begun, _cpu_s() - used
    kept = sorted(path for path in findings.iterdir() if path.is_file())
    reached = {} if kept else reach(target, corpora, given.keep)
    return Result(runs, seconds, cpu_s, process.returncode, kept, reached)


def _cpu_s() -> float:
    """Return the processor time of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def reach(target: str, corpora: list[str], keep: Path | None) -> dict[str, Any]:
    """Return what `loadtest.fuzz.reach` says of some corpora."""
    options = ["--keep", str(keep)] if keep else []
    command = [sys.executable, "-m", "loadtest.fuzz.reach", target, *options, *corpora]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    reached: dict[str, Any] = json.loads(said)
    return reached


def report(target: str, result: Result) -> str:
    """Return the figures as lines of text."""
    rate, cpu_rate = result.runs / result.seconds, result.runs / max(result.cpu_s, 0.01)
    lines = [
        f"{target}: {result.runs:,} runs in {result.seconds:.0f} s, {rate:,.0f} runs/s; "
        f"{cpu_rate:,.0f} runs per second of processor time"
    ]
    lines += [f"finding: {path}" for path in result.findings]
    lines.append(f"findings: {len(result.findings)}")
    if result.status:
        lines.append(f"the fuzzer ended with status {result.status}")
    if result.reach:
        taken = sum(part for part, _ in result.reach["branches"].values())
        total = sum(whole for _, whole in result.reach["branches"].values())
        lines.append(
            f"corpus: {result.reach['inputs']:,} inputs, {result.reach['bytes']:,} bytes; "
            f"branches {taken} of {total}, {100 * taken / total:.1f} %"
        )
        lines += [
            f"  {name}: {part} of {whole}, {100 * part / max(whole, 1):.1f} %"
            for name, (part, whole) in result.reach["branches"].items()
        ]
    return "\n".join(lines)


def parse(words: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.fuzz", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument(
        "--runs", type=int, default=0, help="inputs to try; without it until --seconds are over"
    )
    parser.add_argument("--seconds", type=int, default=0, help="to fuzz at most")
    parser.add_argument("--seed", type=int, default=1, help="of the fuzzer's choices")
    parser.add_argument("--corpus", type=Path, help="directory for inputs on new ways; kept, and begun with")
    parser.add_argument("--findings", type=Path, help="directory for inputs that failed; else a new one")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write the smallest corpus that reaches as much"
    )
    given = parser.parse_args(words)
    if not given.runs and not given.seconds:
        parser.error("give --runs or --seconds")
    return given


def main(words: list[str] | None = None) -> int:
    """Fuzz, and print the figures."""
    given = parse(words)
    for name in ("atheris", "coverage"):
        if importlib.util.find_spec(name) is None:
            print(f"loadtest.fuzz: {name} is missing: pip install -e '.[dev]', on Linux", file=sys.stderr)
            return 2
    findings = given.findings or Path(tempfile.mkdtemp(prefix="fuzz-findings-"))
    with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as corpus:
        result = fuzz(given.target, given, given.corpus or Path(corpus), findings)
    print(report(given.target, result))
    if result.is_clean and not given.findings:
        findings.rmdir()
    print("loadtest.fuzz: " + ("passed" if result.is_clean else "FAILED"))
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
