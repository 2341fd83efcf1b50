"""Runs one fenced block and reports what is wrong with it."""

import re
import subprocess
import threading
from pathlib import Path

from presence.config.loader import ConfigError, load
from tests.docs.pages import Block
from tests.docs.stage import PYTHON, Stage

TIME_LIMIT_S = 90.0
OUTPUT_CHARS = 1500
TIME = re.compile(r"\s(\d{13})?$")  # at the end of a line, in milliseconds
SLEEPS = {"sleep(12)": "sleep(0.3)"}  # between keepalives of a device: the server of the tests is quicker


def problem_of(
    block: Block, stage: Stage, until: str | None = None, printed: list[str] | None = None
) -> str | None:
    """Run a block; return what is wrong with it, or None.

    Args:
        block: in one of the languages that are run.
        stage: where it runs.
        until: for a program that runs forever, what it prints once it has worked.
        printed: all lines of one that ends, without times at their ends; None: any output.
    """
    text = stage.real(block.text)
    _keep(text, stage.folder)
    if block.language == "toml":
        return _toml(text, stage.folder)
    if block.language == "sh":
        return _outcome(["bash", "-euo", "pipefail", "-c", text], stage)
    if block.language == "python":
        for slow, quick in SLEEPS.items():
            text = text.replace(slow, quick)
        return _outcome([*PYTHON, "-c", text], stage, printed, until)
    return f"no way to run {block.language}"


def _keep(text: str, folder: Path) -> None:
    """Write a block whose first line is a comment with a file name to that file."""
    name = text.partition("\n")[0].removeprefix("# ")
    if text.startswith("# ") and name.endswith((".py", ".toml")) and "/" not in name:
        (folder / name).write_text(text)


def _toml(text: str, folder: Path) -> str | None:
    path = folder / "snippet.toml"
    path.write_text(text)
    try:
        load({"config": str(path)}, {})
    except ConfigError as error:
        return str(error)
    return None


def _outcome(
    command: list[str], stage: Stage, printed: list[str] | None = None, until: str | None = None
) -> str | None:
    """Run a program to its end, or until it prints certain words; return what is wrong with it."""
    program = subprocess.Popen(
        command,
        cwd=stage.folder,
        env=stage.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(TIME_LIMIT_S, program.kill)
    timer.start()
    lines_printed: list[str] = []
    try:
        for line in program.stdout or ():
            lines_printed.append(line)
            if until and until in line:
                return None
        status = program.wait()
    finally:
        timer.cancel()
        program.kill()
        program.communicate()
    text = "".join(lines_printed)
    if until:
        return f"it never says {until!r}: {text[-OUTPUT_CHARS:]}"
    if status:
        return f"status {status}: {text[-OUTPUT_CHARS:]}"
    lines = [TIME.sub("", line.rstrip("\n")) for line in lines_printed]
    return f"it prints {lines}" if printed is not None and lines != printed else None
