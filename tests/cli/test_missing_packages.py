"""What works without the packages of the server, and what the others say."""

import subprocess
import sys

WITHOUT_SERVER = """
import sys
from presence.cli.main import SERVER_PACKAGES, main
sys.modules.update(dict.fromkeys(SERVER_PACKAGES))
"""


def run_without_server(program: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT_SERVER + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_libraries_need_no_package_of_the_server() -> None:
    libraries = ("client", "subscriber", "followups", "reader", "sender", "webhooks")
    modules = (*libraries, "cli.client", "cli.tail", "cli.status")
    outcome = run_without_server("".join(f"import presence.{name}\n" for name in modules))
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_server_names_the_extra_that_is_missing() -> None:
    outcome = run_without_server("sys.argv = ['presence', 'serve']; sys.exit(main())")
    assert outcome.returncode == 2
    assert "pip install 'presence-server[server]'" in outcome.stderr
    assert "Traceback" not in outcome.stderr
