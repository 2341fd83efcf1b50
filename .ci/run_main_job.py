"""Run the README's first line until it says ready, log in, see the wheel turn, stop it: status 0."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TIME_LIMIT_S = 300.0


def see_the_wheel(operators):
    """Wait until the live page is there, and the one session has come nearer to the hand of the wheel."""
    page = http.client.HTTPConnection(operators, timeout=TIME_LIMIT_S / 5)
    page.request("GET", "/")
    if (answer := page.getresponse()).status != 200 or b"<html" not in answer.read():
        sys.exit(f"no page at {operators}: {answer.status}")
    page.close()
    page.request("GET", "/v1/live")
    places, kind = [], ""
    for text in page.getresponse():
        name, _, value = text.decode().strip().partition(": ")
        if name == "event":
            kind = value
        elif name == "data" and kind == "sample":
            wheel = json.loads(value)["wheel"]
            places += [n for n, sessions in enumerate(wheel["sizes"]) if sessions]
            if len(set(places)) > 1:
                return places
    sys.exit(f"the wheel does not turn: {places}")


line = sys.argv[1]
begun = time.monotonic()
shell = subprocess.Popen(["bash", "-c", line], stderr=subprocess.PIPE, text=True, start_new_session=True)
timer = threading.Timer(TIME_LIMIT_S, lambda: os.killpg(shell.pid, signal.SIGKILL))
timer.start()
address = operators = None
for said in shell.stderr:
    print(said, end="", flush=True)
    if found := re.search(r'"event": ?"admin HTTP server starting", ?"url": ?"http://([^/"]+)/"', said):
        operators = found[1]
    if said.startswith("ready "):
        host, _, port = said.split()[1].rpartition(":")
        address = (host, int(port))
        break
if address is None:
    sys.exit(f"never became ready; exit status {shell.wait()}")
if operators is None:
    sys.exit("never told where operators look")
print(f"ready after {time.monotonic() - begun:.1f} s")
with socket.create_connection(address, timeout=10) as client:
    body = b"\x93\x01\x01\x81\xa3uid\xa3ann"  # [1, 1, {"uid": "ann"}]
    client.sendall(len(body).to_bytes(4, "big") + body)
    answer = client.recv(4096)
    if answer[4:6] != b"\x93\x40":  # [64, …]: ok
        sys.exit(f"the login was not answered with ok: {answer!r}")
    print("login answered")
    places = see_the_wheel(operators)
print(f"the wheel turns after {time.monotonic() - begun:.1f} s: from slot {places[0]} to {places[-1]}")
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
