"""The package of the client in TypeScript, built in a folder of the tests' own."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROTOCOL = Path(__file__).parents[3] / "protocol"
SOURCE = PROTOCOL / "clients" / "node"
BUILD_TIMEOUT_S = 180.0
NO_NETWORK = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")


def readme_example() -> str:
    """Return the program in the client's README."""
    readme = (SOURCE / "README.md").read_text("utf-8")
    found = re.search(r"<!-- example -->\n```ts\n(.+?)```", readme, re.DOTALL)
    assert found
    return found.group(1)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an empty home, so without settings of npm."""
    home = folder / ".home"
    home.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.lower().startswith("npm_")}
    environment |= {"HOME": str(home), "NO_COLOR": "1"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )


def built_client(root: Path) -> Path:
    """Build the client below `root`; return its folder there."""
    folder = root / "protocol" / "clients" / "node"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    for name in ("SPEC.md", "vectors.json", "clients/names.json"):
        shutil.copy(PROTOCOL / name, root / "protocol" / name)
    (folder / "examples" / "readme.mts").write_text(readme_example())
    fetched = run(folder, "npm", "ci", "--no-audit", "--no-fund")
    if fetched.returncode and any(word in fetched.stderr for word in NO_NETWORK):
        if os.environ.get("TESTS_SKIP_NOTHING"):
            pytest.fail(f"npm cannot fetch the compiler: {fetched.stderr}")
        pytest.skip("npm cannot fetch the compiler: no network")
    assert fetched.returncode == 0, fetched.stderr
    compiled = run(folder, "npm", "run", "build")
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return folder
