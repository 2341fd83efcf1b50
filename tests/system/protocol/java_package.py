"""The client in Java, built in a folder of the tests' own."""

import shutil
import subprocess
from pathlib import Path

from tests.system.protocol.device import ClientProgram

PROTOCOL = Path(__file__).parents[3] / "protocol"
SOURCE = PROTOCOL / "clients" / "java"
BUILD_TIMEOUT_S = 180.0
# A short program ends before the second compiler and the other collectors would pay.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-ea")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
    )


def built_client(root: Path) -> Path:
    """Build the client below `root`; return its folder there."""
    folder = root / "protocol" / "clients" / "java"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("target"))
    built = run(folder, "./build")
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def jar(client: Path) -> Path:
    return client / "target" / "presence-client.jar"


def class_path(client: Path) -> str:
    """Return where the client and its tests are."""
    return f"{jar(client)}:{client / 'target' / 'test'}"


def in_java(client: Path) -> ClientProgram:
    """Return the program of a client that `built_client` has built."""
    return ClientProgram(
        (*JAVA, "-cp", class_path(client), "presence.client.Device"), authority="PRESENCE_AUTHORITY"
    )
