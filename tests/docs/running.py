"""Running one fenced block, and saying what is wrong with it."""

import re
import subprocess
import threading
from pathlib import Path

from presence.config.loading import ConfigError, load
from tests.docs.pages import Block
from tests.docs.stage import PYTHON, Stage

TIME_LIMIT_S = 90.0
SAID_CHARS = 1500
TIME = re.compile(r"\s(\d{13})?$")  # at the end of a line, in milliseconds
SLEEPS = {"sleep(12)": "sleep(0.3)"}  # of a device that beats as it should: the server here is quick


def problem_of(
    block: Block, stage: Stage, until: str | None = None, printed: list[str] | None = None
) -> str | None:
    """Run a block; return what is wrong with it, or None.

    Args:
        block: of one of the languages that are run.
        stage: where.
        until: for a program that runs for ever, what it prints once it has worked.
        printed: all lines of one that ends, without times at their ends; None: it may print anything.
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
    return f"nobody knows how to run {block.language}"


def _keep(text: str, folder: Path) -> None:
    """Write a block whose first line is a comment with the name of a file into that file."""
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
    """Run a program to its end, or until it prints some words; return what is wrong with it."""
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
    said: list[str] = []
    try:
        for line in program.stdout or ():
            said.append(line)
            if until and until in line:
                return None
        status = program.wait()
    finally:
        timer.cancel()
        program.kill()
        program.communicate()
    text = "".join(said)
    if until:
        return f"it never says {until!r}: {text[-SAID_CHARS:]}"
    if status:
        return f"status {status}: {text[-SAID_CHARS:]}"
    lines = [TIME.sub("", line.rstrip("\n")) for line in said]
    return f"it prints {lines}" if printed is not None and lines != printed else None
