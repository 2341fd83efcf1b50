"""The part of redis-py that the project's store uses, over a fake server.

Each round trip goes through a function of the simulation, which may perform it, lose it before or after,
delay it or perform it twice:

    def deliver(perform):
        answers = perform()
        raise redis.TimeoutError("the answer is lost")
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import redis
from redis._parsers import BaseParser

from tests.simulation.fake.server import FakeRedis
from tests.simulation.fake.values import Reply, ReplyError

Answers = list[Any]  # replies in order; an exception of redis-py stands for an error reply
Perform = Callable[[], Answers]
Deliver = Callable[[Perform], Answers]


def at_once(perform: Perform) -> Answers:
    """Perform a round trip, as a network without faults."""
    return perform()


def connector(server: FakeRedis, deliver: Deliver = at_once) -> Callable[[str], redis.Redis]:
    """Return what opens clients of `server` in place of `presence.store.client.open_client`."""
    return lambda _url: cast(redis.Redis, FakeClient(server, deliver))


class _Commands:
    """The commands that clients and pipelines have alike."""

    def execute_command(self, *words: Any) -> Any:
        raise NotImplementedError

    def get(self, key: Any) -> Any:
        return self.execute_command("GET", key)

    def hget(self, key: Any, field: Any) -> Any:
        return self.execute_command("HGET", key, field)

    def hgetall(self, key: Any) -> Any:
        return self.execute_command("HGETALL", key)

    def hmget(self, key: Any, fields: Iterable[Any]) -> Any:
        return self.execute_command("HMGET", key, *fields)

    def hset(
        self, key: Any, field: Any = None, value: Any = None, mapping: Mapping[Any, Any] | None = None
    ) -> Any:
        pairs = [] if field is None else [field, value]
        for each in (mapping or {}).items():
            pairs += each
        return self.execute_command("HSET", key, *pairs)

    def hsetnx(self, key: Any, field: Any, value: Any) -> Any:
        return self.execute_command("HSETNX", key, field, value)

    def hdel(self, key: Any, *fields: Any) -> Any:
        return self.execute_command("HDEL", key, *fields)

    def hlen(self, key: Any) -> Any:
        return self.execute_command("HLEN", key)

    def smembers(self, key: Any) -> Any:
        return self.execute_command("SMEMBERS", key)

    def zrange(self, key: Any, start: int, stop: int, *, withscores: bool = False) -> Any:
        return self.execute_command("ZRANGE", key, start, stop, *(["WITHSCORES"] if withscores else ()))

    def zscore(self, key: Any, member: Any) -> Any:
        return self.execute_command("ZSCORE", key, member)

    def xrange(self, key: Any, min: Any = "-", max: Any = "+", count: int | None = None) -> Any:
        return self.execute_command("XRANGE", key, min, max, *([] if count is None else ["COUNT", count]))

    def delete(self, *keys: Any) -> Any:
        return self.execute_command("DEL", *keys)

    def unlink(self, *keys: Any) -> Any:
        return self.execute_command("UNLINK", *keys)

    def publish(self, channel: Any, message: Any) -> Any:
        return self.execute_command("PUBLISH", channel, message)

    def script_load(self, text: str) -> Any:
        return self.execute_command("SCRIPT", "LOAD", text)

    def evalsha(self, digest: str, count: int, *words: Any) -> Any:
        return self.execute_command("EVALSHA", digest, count, *words)

    def eval(self, text: str, count: int, *words: Any) -> Any:
        return self.execute_command("EVAL", text, count, *words)


class _Pool:
    """What a store asks of a pool of connections."""

    def __init__(self, client: "FakeClient") -> None:
        self._client = client

    def disconnect(self, inuse_connections: bool = True) -> None:
        """Do nothing: a fake connection has no state that a lost answer could spoil."""

    def get_connection(self) -> "_Connection":
        return _Connection(self._client)

    def release(self, connection: "_Connection") -> None:
        """Do nothing, as `disconnect`."""


class _Connection:
    """Commands are sent together; the round trip is made when the first answer is read."""

    def __init__(self, client: "FakeClient") -> None:
        self._client = client
        self._commands: Sequence[tuple[Any, ...]] = ()
        self._answers: Iterator[Any] | None = None

    def pack_commands(self, commands: Iterable[Sequence[Any]]) -> Sequence[tuple[Any, ...]]:
        return [tuple(command) for command in commands]

    def send_packed_command(self, commands: Sequence[tuple[Any, ...]]) -> None:
        self._commands, self._answers = commands, None

    def read_response(self) -> Any:
        if self._answers is None:
            self._answers = iter(self._client.exchange(self._commands))
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeClient(_Commands):
    """A `redis.Redis` that answers in bytes."""

    def __init__(self, server: FakeRedis, deliver: Deliver = at_once) -> None:
        self._server = server
        self._deliver = deliver
        self.connection_pool = _Pool(self)

    def execute_command(self, *words: Any) -> Any:
        """Perform one command.

        Raises:
            redis.RedisError: as redis-py does; or what the simulation raises.
        """
        (answer,) = self.exchange([words])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def exchange(self, commands: Sequence[tuple[Any, ...]]) -> Answers:
        """Perform commands in one round trip."""
        packed = [[_packed(word) for word in words] for words in commands]
        return self._deliver(lambda: [self._answer(words) for words in packed])

    def _answer(self, words: list[bytes]) -> Any:
        try:
            reply = self._server.execute(*words)
        except ReplyError as error:
            return BaseParser.parse_error(str(error))  # type: ignore[no-untyped-call]  # redis-py's
        shape = _SHAPES.get(words[0])
        return shape(reply, words) if shape else reply

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "FakePipeline":
        """Return a pipeline; one thread serves this server, so that each is a transaction."""
        return FakePipeline(self)

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakePipeline(_Commands):
    """Commands that wait to be sent together."""

    def __init__(self, client: FakeClient) -> None:
        self._client = client
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *words: Any) -> Any:
        """Add a command."""
        self._commands.append(words)
        return self

    def execute(self, raise_on_error: bool = True) -> Answers:
        """Perform all of them in one round trip; error replies name their command, as redis-py's do."""
        commands, self._commands = self._commands, []
        if not commands:
            return []
        answers = self._client.exchange(commands)
        for number, (words, answer) in enumerate(zip(commands, answers, strict=True), 1):
            if isinstance(answer, redis.ResponseError) and raise_on_error:
                command = " ".join(str(word) for word in words)[:100]
                answer.args = (f"Command # {number} ({command}) of pipeline caused error: {answer.args[0]}",)
                raise answer
        return answers


def _packed(word: Any) -> bytes:
    """Return an argument as it would go over the network."""
    match word:
        case bytes():
            return word
        case str():
            return word.encode()
        case bool() | None:
            raise redis.DataError(f"Invalid input of type: {type(word).__name__!r}.")
        case int() | float():
            return repr(word).encode()
    raise redis.DataError(f"Invalid input of type: {type(word).__name__!r}.")


def _hash(reply: list[bytes], _words: list[bytes]) -> Reply:
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _set(reply: list[bytes], _words: list[bytes]) -> Reply:
    return set(reply)


def _ranked(reply: list[bytes], words: list[bytes]) -> Reply:
    if b"WITHSCORES" not in words:
        return reply
    return [(member, float(score)) for member, score in zip(reply[::2], reply[1::2], strict=True)]


def _score(reply: bytes | None, _words: list[bytes]) -> Reply:
    return None if reply is None else float(reply)


def _entries(reply: list[Any], _words: list[bytes]) -> Reply:
    return [(entry, _hash(fields, [])) for entry, fields in reply]


# What redis-py makes of replies.
_SHAPES: Final[Mapping[bytes, Callable[[Any, list[bytes]], Reply]]] = {
    b"HGETALL": _hash,
    b"SMEMBERS": _set,
    b"ZRANGE": _ranked,
    b"ZSCORE": _score,
    b"XRANGE": _entries,
}
