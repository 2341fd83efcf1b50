"""A delay queue: an update whose resource is locked by another writer is postponed, and not lost.

Writers change accounts in a database: they read one, compute, and write it back. Two at the same time would
overwrite each other's results, so each takes the account's lock first. A writer that finds it taken should
not wait, because there is other work, and must not drop the update: it postpones it.

    presence timers run --kind queue --name updates --handler presence.timers.examples.locked_resource:apply

* No update is lost: the queue hands it out until the handler has returned, even if writers die.
* Each is applied once: the database records its id in the transaction that applies it.
* None is overwritten: the lock's fencing token rises, and the database refuses a writer whose token is older
  than the last one's. A lock alone cannot guarantee that: it expires, also while its owner is suspended.
* In no order: postponed updates come later.
"""

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from presence.timers.examples import stage
from presence.timers.handlers import RetryLater
from presence.timers.interface import Due, Event
from presence.timers.kinds import TimerLocation

LOCK_MS: Final = 2000  # far longer than an update takes; then the lock of a dead owner is free
RECKON_S: Final = 0.003  # of a writer between reading and writing
UPDATES: Final = 40
ACCOUNTS: Final = 3

_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL);
CREATE TABLE applied (id TEXT PRIMARY KEY);
CREATE TABLE put_off (id TEXT NOT NULL);
"""


def apply(due: Due) -> None:
    """Apply an update, ``account amount``, under the account's lock; postpone it if that is taken."""
    account, amount = due.payload.decode().split()
    with database() as db, locked(account) as fence:
        if fence is None:
            db.execute("INSERT INTO put_off VALUES (?)", (due.id,))
            raise RetryLater(random.uniform(0.01, 0.05))  # noqa: S311 - spreads writers
        (balance,) = db.execute("SELECT balance FROM accounts WHERE name = ?", (account,)).fetchone()
        time.sleep(RECKON_S)
        db.execute("BEGIN IMMEDIATE")
        if db.execute("INSERT OR IGNORE INTO applied VALUES (?)", (due.id,)).rowcount:
            written = db.execute(
                "UPDATE accounts SET balance = ?, fence = ? WHERE name = ? AND fence <= ?",
                (balance + int(amount), fence, account, fence),
            )
            if not written.rowcount:  # another writer had the lock after us: our balance is old
                db.execute("ROLLBACK")
                raise RetryLater(0.0)
        db.execute("COMMIT")


@contextmanager
def locked(resource: str) -> Iterator[int | None]:
    """Lock a resource; yield the fencing token, or None if it is taken."""
    redis, lock = stage.redis(), f"example:{{{resource}}}:lock"
    fence = int(redis.incr(f"{lock}:fence"))
    if not redis.set(lock, fence, nx=True, px=LOCK_MS):
        yield None
        return
    try:
        yield fence
    finally:
        with redis.pipeline() as pipe:  # delete it only if it is still ours
            pipe.watch(lock)  # type: ignore[no-untyped-call] # redis-py's
            if pipe.get(lock) == str(fence).encode():
                pipe.multi()
                pipe.delete(lock)
                pipe.execute(raise_on_error=False)


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Open the database."""
    with closing(sqlite3.connect(stage.folder() / "bank.db", timeout=10, isolation_level=None)) as db:
        yield db


def main() -> None:
    """Run it: two processes of four writers each, and concurrent updates of three accounts."""
    updates = {f"update-{n}": f"account-{n % ACCOUNTS} {n}" for n in range(UPDATES)}
    expected = {f"account-{n}": sum(range(n, UPDATES, ACCOUNTS)) for n in range(ACCOUNTS)}
    with stage.stage() as url, database() as db:
        db.executescript(_SCHEMA)
        db.executemany("INSERT INTO accounts VALUES (?, 0, 0)", [(name,) for name in expected])
        location = TimerLocation(url, "queue", stage.NAME)
        with location.open() as queue:
            queue.schedule_many(Event(name, 0.0, update.encode()) for name, update in updates.items())
            stage.work(
                location,
                f"{__spec__.name}:apply",
                lambda: queue.state().counts.get("done") == UPDATES,
                *("--concurrency", "4", "--attempts", "500"),
            )
            dead = queue.state().dead
        applied = {name for (name,) in db.execute("SELECT id FROM applied")}
        balances = dict(db.execute("SELECT name, balance FROM accounts"))
        (put_off,) = db.execute("SELECT count(*) FROM put_off").fetchone()
    print(f"{len(applied)} of {UPDATES} updates applied, put off {put_off} times, dead {dead}: {balances}")
    if (applied, balances, dead) != (set(updates), expected, 0):
        raise SystemExit(f"expected {expected}")


if __name__ == "__main__":
    main()
