"""Key rotation while the server runs: the last valid keys stay in use, whatever happens to the file."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from presence.auth import key_file
from presence.auth.key_file import load
from presence.auth.key_rotation import KeyFile, KeyRotation, RotationStatistics
from presence.auth.signing_keys import Keyring
from presence.auth.token_signer import key_set
from presence.common import runtime
from presence.common.faults import Faults
from tests.auth.gates import entry

PATIENCE_S = 30.0


class User:
    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring


class Scene:
    """A key file, a user of its keys, and their rotation."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.json"
        self.write("one")
        self.user = User(load(self.path))
        self.rotation = KeyRotation(self.user, KeyFile(self.path))

    def write(self, *kids: str) -> None:
        self.text(key_set([entry("HS256", kid) for kid in kids]))

    def text(self, text: str) -> None:
        self.path.write_text(text)
        self.path.chmod(0o600)

    @property
    def kids(self) -> set[str]:
        return set(self.user.keyring.kids)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def lines() -> Iterator[list[dict[str, object]]]:
    with capture_logs() as logged:
        yield logged  # type: ignore[misc]  # structlog's mappings


async def test_new_keys_are_used_after_a_poll(scene: Scene, lines: list[dict[str, object]]) -> None:
    ring = scene.user.keyring
    for _ in range(3):
        await scene.rotation.poll()
    assert scene.user.keyring is ring, "nothing has changed"
    scene.write("one", "two")
    async with trio.open_nursery() as nursery:
        for _ in range(5):  # one after the other
            nursery.start_soon(scene.rotation.poll)
    assert scene.kids == {"one", "two"}
    scene.write("two")
    await scene.rotation.poll()
    assert scene.kids == {"two"}
    changes = [{name: line[name] for name in ("keys", "added", "removed")} for line in lines]
    assert changes == [
        {"keys": 2, "added": ["two"], "removed": []},
        {"keys": 1, "added": [], "removed": ["one"]},
    ]
    assert scene.rotation.statistics() == RotationStatistics(2, 0, True)


async def test_keys_of_a_kubernetes_secret_are_followed(scene: Scene, tmp_path: Path) -> None:
    """A mounted Secret changes by replacing a link to a folder, to which the file itself is a link."""
    for version, kid in (("v1", "one"), ("v2", "two")):
        (tmp_path / version).mkdir()
        scene.write(kid)
        scene.path.rename(tmp_path / version / "keys.json")
    (tmp_path / "..data").symlink_to("v1")
    scene.path.symlink_to("..data/keys.json")
    await scene.rotation.poll()
    assert scene.kids == {"one"}
    (tmp_path / "..data_tmp").symlink_to("v2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    await scene.rotation.poll()
    assert scene.kids == {"two"}


@pytest.mark.parametrize("damage", ["text", "gone", "open", "fifo"])
async def test_an_invalid_file_keeps_the_keys_and_is_logged_once(
    scene: Scene, lines: list[dict[str, object]], damage: str
) -> None:
    await scene.rotation.poll()
    if damage == "text":
        scene.text('{"keys": [{"kid": "two", "alg": "HS256", "kty": "oct", "k": "canary"}]}')
    elif damage == "gone":
        scene.path.unlink()
    elif damage == "fifo":
        scene.path.unlink()
        os.mkfifo(scene.path)
    else:
        scene.path.chmod(0o644)
    for _ in range(3):
        await scene.rotation.poll()
    assert scene.kids == {"one"}
    assert [line["log_level"] for line in lines] == ["error"]
    assert str(scene.path) in str(lines[0]["error"])
    assert "canary" not in str(lines)
    assert scene.rotation.statistics() == RotationStatistics(0, 1, False)

    scene.path.unlink(missing_ok=True)
    scene.write("one")
    await scene.rotation.poll()
    assert [line["event"] for line in lines[1:]] == ["token keys valid again"]
    assert scene.rotation.statistics() == RotationStatistics(0, 1, True)
    scene.write("two")
    await scene.rotation.poll()
    assert scene.kids == {"two"}
    assert scene.rotation.statistics() == RotationStatistics(1, 1, True)


async def test_a_read_that_hangs_is_logged_once_and_keeps_the_keys(
    scene: Scene, lines: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.rotation.poll()
    scene.write("two")
    disk, read = threading.Event(), key_file.read

    def hangs(path: Path) -> bytes:
        disk.wait(PATIENCE_S)
        return read(path)

    monkeypatch.setattr(key_file, "read", hangs)
    monkeypatch.setattr(runtime, "CALL_TIMEOUT_S", 0.05)
    for _ in range(3):
        await scene.rotation.poll()
    assert scene.kids == {"one"}
    assert [line["log_level"] for line in lines] == ["error"]
    assert scene.rotation.statistics() == RotationStatistics(0, 1, False)
    monkeypatch.setattr(runtime, "CALL_TIMEOUT_S", PATIENCE_S)
    disk.set()
    with trio.fail_after(PATIENCE_S):
        while scene.kids != {"two"}:
            await scene.rotation.poll()
            await trio.sleep(0.01)
    assert scene.rotation.statistics() == RotationStatistics(1, 1, True)


async def test_the_file_is_polled_repeatedly(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyFile, "retry_s", 0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scene.rotation.run, Faults())
        for kids in ({"two"}, {"three"}):
            scene.write(*kids)
            with trio.fail_after(PATIENCE_S):
                while scene.kids != kids:  # noqa: ASYNC110 - a change of the file causes no event
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
