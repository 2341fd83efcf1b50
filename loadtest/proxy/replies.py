"""Which bytes are a whole request of Redis, and which its whole reply."""

import hiredis


class Request:
    """One request whose reply is to be lost: a command, or a pipeline of them that were sent together."""

    def __init__(self) -> None:
        self._nothing = object()
        self._asked = hiredis.Reader(notEnoughData=self._nothing)
        self._answered = hiredis.Reader(notEnoughData=self._nothing)
        self._outstanding = 0
        self.reply = b""

    def asked(self, data: bytes) -> None:
        """Take note of what was asked; raises `hiredis.HiredisError` if it is no command."""
        self._outstanding += self._count(self._asked, data)

    def answered(self, data: bytes) -> None:
        """Take note of what was answered, and keep it; raises `hiredis.HiredisError` if it is no answer."""
        self.reply += data
        self._outstanding -= self._count(self._answered, data)

    @property
    def is_done(self) -> bool:
        """Whether each command that came has its answer."""
        return bool(self.reply) and self._outstanding <= 0 and not self._asked.has_data()

    def _count(self, reader: "hiredis.Reader", data: bytes) -> int:
        reader.feed(data)
        count = 0
        while reader.gets() is not self._nothing:
            count += 1
        return count
