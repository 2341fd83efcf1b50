"""One Lua 5.1 for all fake servers, and the ways of values between Lua, Python and Redis.

Numbers that a script gives to a command become text as Redis writes them; its replies become numbers,
strings, tables with `ok`, and false for nothing. A script's numbers are cut to whole ones on their way out.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgpack
from lupa import lua51

from tests.simulation.fake.values import Reply, ReplyError, StatusReply, number_text

LIBRARY: Final = Path(__file__).parent / "library.lua"
# As many values as may go between Lua and Python on the stack, well below Lua's limit of 8,000.
FLAT_VALUES: Final = 4000

Call = Callable[[bytes, tuple[bytes, ...]], Reply]
_TEXT: Final = frozenset({bytes})
_SCALARS: Final = frozenset({bytes, int, float, bool})
_FLAT: Final = frozenset({bytes, int, type(None)})


class LuaEngine:
    """Compiled scripts, by digest, and the one runtime that they share; one script runs at a time."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False
        )
        self._chunks: dict[bytes, Any] = {}
        self._lock = threading.Lock()
        self._serve: Call | None = None
        self._compile, self._run, self._null = self._lua.execute(
            LIBRARY.read_bytes(), self._raw, self._unjson, self._unpacked, _sha1
        )

    def compile(self, digest: bytes, text: bytes) -> None:
        """Make a script ready to run.

        Raises:
            ReplyError: it is no Lua.
        """
        if digest not in self._chunks:
            chunk = self._compile(text)
            if isinstance(chunk, tuple):
                raise ReplyError(f"ERR Error compiling script (new function): {chunk[1].decode()}")
            self._chunks[digest] = chunk

    def run(self, digest: bytes, keys: Iterable[bytes], arguments: Iterable[bytes], serve: Call) -> Reply:
        """Run a compiled script; `serve` performs its commands.

        Raises:
            ReplyError: the script failed, or returned an error.
        """
        table = self._lua.table_from
        with self._lock:
            self._serve = serve
            kind, *values = self._run(self._chunks[digest], table(keys), table(arguments))
        match kind:
            case b"list":
                return [value if value.__class__ is bytes else int(value) for value in values]
            case b"error":
                raise ReplyError(values[0].decode(errors="replace"))
            case b"raise":
                raise values[0]
            case b"status":
                return StatusReply(values[0])
        return self._from_lua(values[0])

    def _from_lua(self, value: Any) -> Reply:
        match value:
            case None | False:
                return None
            case True:
                return 1
            case bytes():
                return value
            case int() | float():
                return int(value)
        if lua51.lua_type(value) != "table":
            return None
        for name, kind in ((b"err", ReplyError), (b"ok", StatusReply)):
            if value[name] is not None:
                return kind(value[name])
        replies, place = [], 1
        while (item := value[place]) is not None:
            replies.append(self._from_lua(item))
            place += 1
        return replies

    def _raw(self, name: Any = b"", *arguments: Any) -> Any:
        """Perform a command for Lua; see library.lua."""
        if not _TEXT.issuperset(map(type, arguments)):
            arguments = tuple(map(_argument, arguments))
        try:
            assert self._serve is not None
            reply = self._serve(name, arguments)
        except ReplyError as error:
            return None, str(error).encode()
        if reply.__class__ is bytes or reply.__class__ is int:
            return reply
        if reply.__class__ is list and len(reply) <= FLAT_VALUES and _FLAT.issuperset(map(type, reply)):
            return (True, *([False if each is None else each for each in reply] if None in reply else reply))
        return self._to_lua(reply)

    def _to_lua(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if isinstance(reply, StatusReply):
            return self._lua.table_from({b"ok": bytes(reply)})
        if isinstance(reply, list):
            return self._lua.table_from([self._to_lua(each) for each in reply])
        return reply

    def _unjson(self, text: Any, null: Any) -> Any:
        try:
            # Bytes that are no UTF-8 pass through cjson as they are.
            value = json.loads(text.decode("utf-8", "surrogateescape"), strict=False)
            return self._from_json(value, null)
        except (ValueError, AttributeError, RecursionError) as error:
            return None, f"Expected JSON: {error}".encode("utf-8", "replace")

    def _from_json(self, value: Any, null: Any) -> Any:
        match value:
            case str():
                return value.encode("utf-8", "surrogateescape")
            case None:
                return null
            case dict():
                pairs = {_text(key): self._from_json(each, null) for key, each in value.items()}
                return self._lua.table_from(pairs)
            case list():
                return self._lua.table_from([self._from_json(each, null) for each in value])
        return value

    def _unpacked(self, text: bytes) -> Any:
        try:
            value = msgpack.unpackb(text, raw=True, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            return None, f"Bad data format in input: {error}".encode()
        if value.__class__ is list and len(value) <= FLAT_VALUES and _SCALARS.issuperset(map(type, value)):
            return (True, True, *value)
        return self._table(value)

    def _table(self, value: Any) -> Any:
        match value:
            case dict():
                return self._lua.table_from({self._table(k): self._table(v) for k, v in value.items()})
            case list():
                return self._lua.table_from([self._table(each) for each in value])
        return value


def _argument(value: Any) -> bytes:
    if value.__class__ is bytes:
        return bytes(value)
    if value.__class__ is int or value.__class__ is float:
        return number_text(value)
    raise ReplyError("ERR Command arguments must be strings or integers")


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()


@cache
def engine() -> LuaEngine:
    return LuaEngine()
