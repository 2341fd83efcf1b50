"""Check that the Redis user of a server has the permissions that servers need, without executing anything.

Each command is queued in a transaction that is never executed: a command without permission is refused when
it is queued, and closing the connection drops the queue. Nothing is sent before Redis has confirmed that it
queues, and each command has arguments with which it would write nothing even if it were executed: an odd
number of fields, an invalid number (HSETNX and SADD have no such arguments). So a missing permission shows
before the first user is online, and not in the middle of a sweep. Excessive permissions are detected in the
same way. Permissions matter only when used, so this is checked once, when a server starts. Refused commands
appear in `ACL LOG`, with the context `multi`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple

from presence.common.errors import StoreError
from presence.common.redis_url import user
from presence.config.settings import Settings
from presence.store.cluster_routes import Connect, Routes
from presence.store.error_classes import as_failure, code_of
from presence.store.keys import Keys
from presence.store.redis_client import Redis, RedisError, ResponseError, open_client


def _by_word(commands: str) -> dict[str, str]:
    """Return commands by their names in ACL rules, as ``hget`` or ``xinfo|stream``."""
    found = [command.strip() for command in commands.replace("\n", ";").split(";") if command.strip()]
    return {
        "|".join(each.lower().split()[: 2 if each.split()[0] in _CONTAINERS else 1]): each for each in found
    }


_CONTAINERS: Final = {"PUBSUB", "XINFO"}
# Commands of servers; KEY and CHANNEL stand for one of ours.
SERVER: Final = _by_word(
    """
    EVAL 1 1 KEY; EVALSHA 0 1 KEY; EXISTS KEY; HDEL KEY x; HEXISTS KEY x; HGET KEY x; HGETALL KEY; HLEN KEY
    HMGET KEY x; HSCAN KEY 0; HSET KEY x x y; HSETNX KEY x x; INFO replication; PEXPIRE KEY x; PING
    PUBLISH CHANNEL x; PUBSUB NUMPAT; PUBSUB NUMSUB CHANNEL; SADD KEY x; SETRANGE KEY x x; SMEMBERS KEY
    SREM KEY x; SUBSCRIBE CHANNEL; TIME; UNSUBSCRIBE CHANNEL; XADD KEY 0-0 x x; XDEL KEY x; XINFO STREAM KEY
    XRANGE KEY - +; ZADD KEY x x; ZMSCORE KEY x; ZRANGE KEY 0 0; ZRANGEBYSCORE KEY 0 0
    ZREM KEY x; ZREMRANGEBYSCORE KEY x x; ZSCORE KEY x
    """
)
# Further ones for running the follow-up scheduler.
FOLLOWUPS: Final = _by_word("ZSCAN KEY 0")
# Further ones for running the projector of rooms.
ROOMS: Final = _by_word("ZCARD KEY; ZSCAN KEY 0")
# Further ones for the admin process to show events. Servers work without them.
EVENTS: Final = _by_word("XREAD STREAMS KEY 0; XREVRANGE KEY + - COUNT 1")

# Commands that no server needs. Each would fail because of its arguments even if it were executed.
EXCESSIVE: Final = {
    "FLUSHALL": "FLUSHALL NEITHER",
    "CONFIG SET": "CONFIG SET no-such-setting x",
    "ACL SETUSER": "ACL SETUSER nobody no-such-rule",
}
OTHERS_KEYS: Final = "keys of others"
KEYS_TRIED: Final = 64  # of each server: rules are patterns, and are not written per shard


class Rights(NamedTuple):
    """The permissions of a user that has all those needed."""

    too_much: list[str]  # excessive permissions, as text
    no_events: str  # the command that lets the admin process show events; "" if it may already


class MissingRight(StoreError):
    """The Redis user lacks a permission that servers need."""


def check_server_rights(url: str, keys: Keys, settings: Settings) -> Rights:
    """Check the permissions that a server with these settings needs: `serve` and the doctor ask the same.

    Raises:
        MissingRight, StoreUnavailable, StoreError: as `check_rights`.
    """
    rights = check_rights(url, keys, followups=settings.followups is not None, rooms=settings.rooms != "off")
    return rights._replace(no_events="") if settings.no_admin else rights


def check_rights(
    url: str, keys: Keys, *, followups: bool, rooms: bool = False, connect: Connect = open_client
) -> Rights:
    """Check the permissions of a server's user, on each Redis server that has some of the keys.

    `followups`, `rooms`: whether the server also runs the follow-up scheduler, and the projector of rooms.

    Raises:
        MissingRight: the message names what is missing, and the command that fixes it.
        StoreUnavailable, StoreError: Redis is unreachable, or does not know a command.
    """
    words = SERVER | EVENTS | (FOLLOWUPS if followups else {}) | (ROOMS if rooms else {})
    ours = [*keys.lease_keys, keys.meta, keys.bans, *(keys.events(shard) for shard in range(keys.shards))]
    missing: set[str] = set()
    too_much: set[str] = set()
    try:
        with closing(Routes(url, connect)) as routes:
            for client, places in routes.groups(ours):
                some = [ours[place] for place in places[:KEYS_TRIED]]
                with _transaction(client, missing) as connection:
                    missing |= _refused(connection, keys, words, some, rooms=rooms)
                    too_much |= _granted(connection, keys)
    except (RedisError, OSError) as error:
        raise as_failure(error) from error
    who = user(url) or "default"
    rules = " ".join(f"'{rule}'" if rule[0] in "~&" or "|" in rule else rule for rule in sorted(missing))
    command = f"ACL SETUSER {who} {rules}" if missing else ""
    if missing - {f"+{word}" for word in EVENTS}:
        raise MissingRight(f"the user {who} lacks rights: fix it with {command}")
    return Rights(sorted(too_much), command)


@contextmanager
def _transaction(client: Redis, missing: set[str]) -> Iterator[Any]:
    """Open a transaction for the length of a ``with`` block, and drop the queued commands.

    Raises:
        MissingRight: transactions are not allowed.
        RedisError: it could not be opened. Commands sent then would be executed.
    """
    connection: Any = client.connection_pool.get_connection()  # redis-py's, whose types are loose
    try:
        for word in ("exec", "multi"):
            (answer,) = _asked(connection, [[word]])
            if isinstance(answer, Exception) and code_of(answer) == "NOPERM":
                missing.add(f"+{word}")
        if "+multi" in missing:
            raise MissingRight("the user lacks rights: multi, and whatever else is on the page about Redis")
        if isinstance(answer, Exception):
            raise answer
        (queued,) = _asked(connection, [["PING"]])
        if queued != b"QUEUED" and code_of(queued) != "NOPERM":
            raise ResponseError(f"no transaction is open after MULTI: PING came to {queued!r}")
        yield connection
    finally:
        connection.disconnect()


def _refused(
    connection: Any, keys: Keys, words: Mapping[str, str], ours: Sequence[str], *, rooms: bool
) -> set[str]:
    """Return the ACL rules missing for commands, and for writing each of some keys."""
    channels = [
        keys.online_channel,
        keys.control_channel("x"),
        keys.watchers_channel(0),
        keys.changes_channel(0),
        keys.roster_channel,
        *([keys.room_channel] if rooms else ()),
    ]
    asked = [(word, _worded(command, ours[0], channels[0])) for word, command in words.items()]
    asked += [("hset", _worded(SERVER["hset"], key, "")) for key in ours[1:]]
    asked += [("subscribe", ["SUBSCRIBE", channel]) for channel in channels[1:]]
    answers = _asked(connection, [command for _, command in asked])
    return {
        _rule(word, answer, keys)
        for (word, _), answer in zip(asked, answers, strict=True)
        if isinstance(answer, Exception)
    }


def _rule(word: str, answer: Exception, keys: Keys) -> str:
    """Return the ACL rule that would allow a refused command."""
    if code_of(answer) != "NOPERM":
        raise answer
    text = str(answer)
    if "to run the" in text:
        return f"+{word}"
    return f"{'&' if 'channel' in text else '~'}{keys.prefix}:*"


def _granted(connection: Any, keys: Keys) -> set[str]:
    """Return the excessive permissions of the user."""
    tried = EXCESSIVE | {OTHERS_KEYS: f"EXISTS not-{keys.prefix}:x"}
    answers = _asked(connection, [command.split() for command in tried.values()])
    moved = {"MOVED", "CROSSSLOT"}  # a cluster server checks permissions first
    return {
        words
        for words, answer in zip(tried, answers, strict=True)
        if not isinstance(answer, Exception) or code_of(answer) in moved
    }


def _worded(command: str, key: str, channel: str) -> list[str]:
    return [{"KEY": key, "CHANNEL": channel}.get(part, part) for part in command.split()]


def _asked(connection: Any, commands: Sequence[Sequence[str]]) -> list[Any]:
    """Send commands in one write; return the answers, with errors among them."""
    connection.send_packed_command(connection.pack_commands(commands))
    answers = []
    for _ in commands:
        try:
            answers.append(connection.read_response())
        except ResponseError as error:
            answers.append(error)
    return answers
