"""What is read of a machine: from files as the kernel has them, and from this very one."""

import os
import socket
import sys
from pathlib import Path

import pytest

from presence.doctor import facts, memory_limits
from presence.doctor.holders import Holder, holders
from presence.settings import Settings

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux shows")
MIB = 1024 * 1024
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CE8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0
   1: 0100007F:1CE8 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0
   2: 00000000:1D38 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4713 1 0
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def process(root: Path, pid: int, command: str, *inodes: int, limits: str = "") -> None:
    write(root, {f"proc/{pid}/cmdline": command, f"proc/{pid}/status": "Name:\tx\nRssAnon:\t  2048 kB\n"})
    (root / f"proc/{pid}/fd").mkdir()
    for place, inode in enumerate(inodes):
        (root / f"proc/{pid}/fd/{place}").symlink_to(f"socket:[{inode}]")
    if limits:
        write(root, {f"proc/{pid}/limits": limits})


def test_settings_of_the_kernel_are_read_and_missing_ones_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"proc/sys/net/core/somaxconn": "128\n", "proc/sys/net/ipv4/tcp_mem": "1\t2\t3\n"})
    found = facts.gather(Settings(), tmp_path).sysctls
    assert found == {"net.core.somaxconn": "128", "net.ipv4.tcp_mem": "1\t2\t3"}


def test_who_listens_is_found_by_the_socket(tmp_path: Path) -> None:
    write(tmp_path, {"proc/net/tcp": TCP})
    process(tmp_path, 77, "/x/python\0/x/presence\0serve\0--redis\0redis://u:secret@h\0", 4711, 9)
    process(tmp_path, 78, "sshd\0", 12)
    found = holders([7400, 7480], tmp_path)
    (ours,) = found[7400]
    assert (ours.pid, ours.is_ours, ours.memory_bytes) == (77, True, 2 * MIB)
    assert "secret" not in str(ours)
    assert found[7480] == [Holder(None)]


def test_nobody_listens_where_nobody_does(tmp_path: Path) -> None:
    assert holders([7400], write(tmp_path, {"proc/net/tcp": TCP.splitlines()[0]})) == {}


def test_of_a_server_that_runs_its_own_file_limit_counts(tmp_path: Path) -> None:
    write(tmp_path, {"proc/net/tcp": TCP})
    limits = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024   65536   files \n"
    process(tmp_path, 77, "python\0-m\0presence\0serve\0", 4711, limits=limits)
    limit = facts.gather(Settings(), tmp_path).files
    assert (limit.soft, limit.hard, limit.whose) == (1024, 65536, "the server, process 77")


def test_without_one_it_is_that_of_this_process(tmp_path: Path) -> None:
    assert facts.gather(Settings(), tmp_path).files.whose.startswith("this shell")


def test_available_memory_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal:  9 kB\nMemAvailable:    1024 kB\n"})
    assert memory_limits.available_bytes(tmp_path) == MIB
    assert memory_limits.available_bytes(tmp_path / "nowhere") is None


def test_the_tightest_control_group_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/presence.service\n",
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
            "sys/fs/cgroup/system.slice/memory.max": str(100 * MIB),
            "sys/fs/cgroup/system.slice/memory.current": str(60 * MIB),
            "sys/fs/cgroup/system.slice/memory.stat": f"anon 1\ninactive_file {10 * MIB}\n",
            "sys/fs/cgroup/system.slice/presence.service/memory.max": "max\n",
        },
    )
    assert memory_limits.control_group_room(tmp_path) == 50 * MIB


def test_control_groups_of_the_first_version_are_known(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n0::/\n",
            f"{folder}/memory.limit_in_bytes": str(2**63 - 4096),
            f"{folder}/docker/abc/memory.limit_in_bytes": str(100 * MIB),
            f"{folder}/docker/abc/memory.usage_in_bytes": str(30 * MIB),
        },
    )
    assert memory_limits.control_group_room(tmp_path) == 70 * MIB


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    assert memory_limits.control_group_room(write(tmp_path, {"proc/self/cgroup": "0::/\n"})) is None
    assert memory_limits.control_group_room(tmp_path / "nowhere") is None


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    found = facts.gather(Settings(host="192.0.2.1", no_admin=True), tmp_path)
    assert list(found.unbound) == ["192.0.2.1"]


def test_a_directory_that_can_be_made_is_sound(tmp_path: Path) -> None:
    assert facts.gather(Settings(data_dir=tmp_path / "a" / "b"), tmp_path).data_dir == ""


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    write(tmp_path, {"file": ""})
    assert facts.gather(Settings(data_dir=tmp_path / "file"), tmp_path).data_dir.endswith("is no directory")


@linux
def test_this_machine_can_be_looked_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        found = facts.gather(Settings(port=port))
    assert [each.pid for each in found.holders[port]] == [os.getpid()]
    assert found.available_bytes
    assert found.sysctls["net.core.somaxconn"].isdigit()
    assert found.python == sys.version_info[:3]
    assert found.libraries["trio"]
