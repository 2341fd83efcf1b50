"""What the project's store uses of redis-py, over a fake server.

Each round trip goes through a function of the simulation, which may perform it, lose it before or after,
delay it or perform it twice:

    def deliver(perform):
        answers = perform()
        raise redis.TimeoutError("the answer is lost")
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import redis
from redis._parsers import BaseParser, Encoder

from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import ReplyError

Answers = list[Any]  # replies in order; an exception of redis-py stands for an error reply
Perform = Callable[[], Answers]
Deliver = Callable[[Perform], Answers]
Packed = list[list[bytes]]

_ENCODER: Final = Encoder("utf-8", "strict", decode_responses=False)  # type: ignore[no-untyped-call]


def deliver_directly(perform: Perform) -> Answers:
    """Perform a round trip over a network without faults."""
    return perform()


def connector(server: FakeRedis, deliver: Deliver = deliver_directly) -> Callable[[str], redis.Redis]:
    """Return what replaces `presence.store.redis_client.open_client` for clients of `server`."""
    return lambda _url: cast(redis.Redis, FakeClient(server, deliver))


def packed(words: Iterable[Any]) -> list[bytes]:
    """Return a command as it goes over the network."""
    return [bytes(_ENCODER.encode(word)) for word in words]  # type: ignore[no-untyped-call]


class FakeClient:
    """A client that is its own pool of connections."""

    def __init__(self, server: FakeRedis, deliver: Deliver = deliver_directly) -> None:
        self._server = server
        self._deliver = deliver
        self.connection_pool = self

    def get_connection(self) -> "_FakeConnection":
        return _FakeConnection(self)

    def disconnect(self, inuse_connections: bool = True) -> None:
        pass

    def exchange(self, commands: Packed) -> Answers:
        return self._deliver(lambda: [self._answer(words) for words in commands])

    def _answer(self, words: list[bytes]) -> Any:
        try:
            return self._server.execute(*words)
        except ReplyError as error:
            return BaseParser.parse_error(str(error))  # type: ignore[no-untyped-call]  # redis-py's


class _FakeConnection:
    """Commands are sent together; the round trip is made when the first answer is read."""

    def __init__(self, client: FakeClient) -> None:
        self._client = client
        self._commands: Packed = []
        self._answers: Iterator[Any] | None = None

    def can_read(self) -> bool:
        return False

    def pack_commands(self, commands: Iterable[Sequence[Any]]) -> Packed:
        return [packed(words) for words in commands]

    def send_packed_command(self, commands: Packed) -> None:
        self._commands, self._answers = commands, None

    def read_response(self) -> Any:
        if self._answers is None:
            self._answers = iter(self._client.exchange(self._commands))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer
