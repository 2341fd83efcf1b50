"""A systemd unit for tests: its lines, and a process restricted as it says."""

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import presence

DEPLOY = Path(presence.__file__).parent.parent / "deploy"
UNIT = DEPLOY / "systemd" / "presence.service"
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000  # seccomp.h: SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(0)
_EPERM = 1
_NO_NEW_PRIVILEGES, _NO_NEW_CODE = 38, 65  # linux/prctl.h: PR_SET_NO_NEW_PRIVS, PR_SET_MDWE


def values(name: str) -> list[str]:
    """Return the unit's values of a name, one for each line."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)


def value(name: str) -> str:
    (found,) = values(name)
    return found


def allowed_calls() -> set[str]:
    """Return the system calls that the unit allows."""
    allowed: set[str] = set()
    for line in values("SystemCallFilter"):
        calls = set().union(*(_calls(word) for word in line.removeprefix("~").split()))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def _calls(name: str) -> set[str]:
    """Return the calls of a group, and of the groups in it."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True
    ).stdout.splitlines()[1:]
    words = [line.strip() for line in listed]
    return set().union(*(_calls(word) for word in words if word and not word.startswith("#")))


def locked_in() -> Callable[[], None]:
    """Return a hook for a child: only the unit's system calls, no new rights or code."""
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    seccomp.seccomp_init.argtypes = [ctypes.c_uint32]
    rules = ctypes.c_void_p(seccomp.seccomp_init(_REFUSE | _EPERM))
    for call in allowed_calls():
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # others are of other architectures
            assert seccomp.seccomp_rule_add(rules, ctypes.c_uint32(_ALLOW), number, 0) == 0, call
    prctl = ctypes.CDLL(None).prctl

    def lock_in() -> None:
        prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        prctl(_NO_NEW_CODE, 1, 0, 0, 0)  # Linux 6.3 and newer; older ones refuse
        if seccomp.seccomp_load(rules):
            os._exit(99)

    return lock_in
