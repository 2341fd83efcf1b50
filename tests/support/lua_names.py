"""Names in Lua scripts, as its compiler sees them."""

import struct
from dataclasses import dataclass, field

from lupa import lua51

# What Redis offers to a script, of which those of the store make use.
OF_REDIS = frozenset(
    {
        "ARGV",
        "KEYS",
        "cjson",
        "cmsgpack",
        "error",
        "ipairs",
        "math",
        "next",
        "pairs",
        "pcall",
        "redis",
        "string",
        "table",
        "tonumber",
        "tostring",
        "type",
        "unpack",
    }
)

_HEADER_BYTES = 12  # of compiled Lua 5.1
_GLOBAL_OPCODES = frozenset({5, 7})  # GETGLOBAL and SETGLOBAL, whose operand is the number of a constant
_LUA = lua51.LuaRuntime(encoding=None)
_COMPILE = _LUA.eval(b"function(text) return string.dump(assert(loadstring(text))) end")


def free_names(text: str) -> set[str]:
    """Return the names that a text uses and does not declare, without those of Redis."""
    return _Chunk(_COMPILE(text.encode())).global_names() - OF_REDIS


def declares(text: str, name: str) -> bool:
    """Whether a text, without a `return` at its end, has a local of this name at its top level."""
    return name not in free_names(f"{text}\nlocal _ = {name}")


@dataclass
class _Chunk:
    """Compiled Lua 5.1, of a machine with 4-byte numbers for sizes and instructions and 8-byte pointers."""

    code: bytes
    place: int = field(default=_HEADER_BYTES)

    def _number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self.code, self.place)
        self.place += struct.calcsize(f"<{kind}")
        return int(value)

    def _text(self) -> str:
        size = self._number("Q")
        text = self.code[self.place : self.place + max(0, size - 1)]
        self.place += size
        return text.decode()

    def _constant(self) -> str:
        match self._number("B"):
            case 4:
                return self._text()
            case 3:
                self.place += 8  # a number
            case 1:
                self.place += 1  # a boolean
        return ""

    def global_names(self) -> set[str]:
        """Return the global names of the function at `place` and of those in it, and go past it."""
        self._text()  # its source
        self.place += 12  # its lines; numbers of captured variables, parameters, registers
        instructions = [self._number("I") for _ in range(self._number("I"))]
        constants = [self._constant() for _ in range(self._number("I"))]
        names = {constants[each >> 14] for each in instructions if each & 0x3F in _GLOBAL_OPCODES}
        for _ in range(self._number("I")):
            names |= self.global_names()
        for _ in range(self._number("I")):  # the line of each instruction
            self.place += 4
        for _ in range(self._number("I")):  # locals
            self._text()
            self.place += 8
        for _ in range(self._number("I")):  # captured variables
            self._text()
        return names
