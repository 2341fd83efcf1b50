"""Run the README's first line until it says ready, log in, stop it; it must end with status 0."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TIME_LIMIT_S = 300.0

line = sys.argv[1]
begun = time.monotonic()
shell = subprocess.Popen(["bash", "-c", line], stderr=subprocess.PIPE, text=True, start_new_session=True)
timer = threading.Timer(TIME_LIMIT_S, lambda: os.killpg(shell.pid, signal.SIGKILL))
timer.start()
address = None
for said in shell.stderr:
    print(said, end="", flush=True)
    if said.startswith("ready "):
        host, _, port = said.split()[1].rpartition(":")
        address = (host, int(port))
        break
if address is None:
    sys.exit(f"never became ready; exit status {shell.wait()}")
print(f"ready after {time.monotonic() - begun:.1f} s")
with socket.create_connection(address, timeout=10) as client:
    body = b"\x93\x01\x01\x81\xa3uid\xa3ann"  # [1, 1, {"uid": "ann"}]
    client.sendall(len(body).to_bytes(4, "big") + body)
    answer = client.recv(4096)
    if answer[4:6] != b"\x93\x40":  # [64, …]: ok
        sys.exit(f"the login was not answered with ok: {answer!r}")
print("login answered")
# The line's last command is the shell's child by now, or the shell has become it.
children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split()
for pid in (shell.pid, *map(int, children)):
    if b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
        os.kill(pid, signal.SIGTERM)
print(shell.stderr.read(), end="", flush=True)
status = shell.wait()
timer.cancel()
print(f"stopped after {time.monotonic() - begun:.1f} s with status {status}")
sys.exit(status)
