"""Tokens for the devices of a load test: signed here with a private key, or printed by a command.

Tests: `tests/system/loadtest/test_device_tokens.py`.
"""

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gevent.pool import Pool

from presence.auth import key_file
from presence.auth.signing_keys import InvalidKey, KeySetError
from presence.auth.token_signer import CannotSign, Signer
from presence.client.tokens import remaining_lifetime_s

TTL_S = 7 * 86_400.0  # of tokens signed here: longer than any run
COMMANDS_AT_ONCE = 8
COMMAND_TIMEOUT_S = 30.0
MIN_LIFETIME_S = 60.0  # a token of the command that expires sooner is not used again


class DeviceTokens:
    """Tokens by uid; "" for all if the options name no source.

    Args:
        options: ``token_key_file`` and ``token_audience``, or ``token_command``.

    Raises:
        ValueError: the options make no sense, or the file has no key that signs.
    """

    def __init__(self, options: Any) -> None:
        self._signer: Signer | None = None
        self._audience: str = options.token_audience
        self._command = shlex.split(options.token_command)
        self._commands = Pool(COMMANDS_AT_ONCE)
        self._cache: dict[str, str] = {}
        if options.token_key_file and self._command:
            raise ValueError("give --token-key-file or --token-command, not both")
        if self._command and "{uid}" not in options.token_command:
            raise ValueError("--token-command needs {uid} where the uid belongs")
        if options.token_key_file:
            path = Path(options.token_key_file)
            try:
                self._signer = Signer(key_file.entries_of(key_file.read(path))[-1])
            except (KeySetError, InvalidKey, CannotSign) as error:
                raise ValueError(f"--token-key-file {path}: {error}") from None

    def get(self, uid: str, on_token: Callable[[str, str], object]) -> None:
        """Call `on_token`, now or later, with a token and "", or with "" and why there is no token."""
        now = time.time()
        if self._signer is not None:
            on_token(self._signer.token(uid, audience=self._audience, now=now, ttl_s=TTL_S), "")
        elif not self._command or _is_fresh(self._cache.get(uid, ""), now):
            on_token(self._cache.get(uid, ""), "")
        else:
            self._commands.apply_async(self._run_command, (uid, on_token))

    def _run_command(self, uid: str, on_token: Callable[[str, str], object]) -> None:
        command = [word.replace("{uid}", uid) for word in self._command]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            on_token("", _reason(error))
            return
        self._cache[uid] = done.stdout.strip()
        on_token(self._cache[uid], "" if self._cache[uid] else "--token-command printed nothing")


def _reason(error: Exception) -> str:
    """Return what is the same for all devices."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"--token-command ended with status {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"--token-command took longer than {COMMAND_TIMEOUT_S:.0f} s"
    if isinstance(error, UnicodeDecodeError):
        return "--token-command printed what is no text"
    return f"--token-command: {error}"


def _is_fresh(token: str, now: float) -> bool:
    left_s = remaining_lifetime_s(token, now)
    return bool(token) and (left_s is None or left_s > MIN_LIFETIME_S)
