"""Small numbers for the users that a worker knows, so that columns of numbers replace objects. Pure.

A user has a *slot* while some part of the worker holds it; slots are reused. The names are in the buckets of
a hash table and nowhere else. A bucket is one `bytes`: the name of each user, in UTF-8, and the slot. A
search is a search in these bytes. The byte that begins a user and the one that ends the name cannot be in
UTF-8, so no name can look like a part of another.

The table grows by linear hashing: for every few users that are added one bucket is split, in turn, so no
operation has to move all users. Buckets never merge: a table has the memory of the most users that it had,
until it is empty.

Costs: each operation O(1), a microsecond. 35 bytes per user with a name of eleven, measured.
"""

from array import array
from typing import Final

USERS_PER_BUCKET: Final = 8  # on average: a search looks at some 150 bytes
MAX_HOLDS: Final = 255  # of one user, see `UserTable.hold`
MAX_RECENT: Final = 1_024  # a power of two: twice the users of the largest request; 130 KB
WALK_FACTOR: Final = 8  # slots that a step of a walk looks at, as a multiple of those it may return
NO_SHARD: Final = 0xFFFF  # there are at most 16,384

_USER: Final = b"\xff"  # begins a user, and ends a bucket
_SLOT: Final = b"\xfe"  # ends the name; the slot follows
_SLOT_DIGITS: Final = 6  # hexadecimal
_HASH_MASK: Final = 0xFFFFFFFF
_RECENT_MASK: Final = MAX_RECENT - 1
_NOBODY: Final = None, None


class UserTable:
    """The users that a worker knows, each with its slot.

    Attributes:
        name_bytes: of all names, in UTF-8.
    """

    def __init__(self) -> None:
        self._count = self.name_bytes = 0
        self._buckets: list[bytes] = [_USER]
        self._unsplit = 0  # the buckets below this one are split already, this time round
        self._hash_bits = 0  # of a hash that the buckets not split yet depend on
        # By slot:
        self._hashes = array("I")  # lowest bits of the hash of the name
        self._holds = array("B")  # by how many parts it is held; 0: the slot is free
        self._shards = array("H")  # for `walk`
        self._free = array("I")  # slots
        # Users looked for lately, by the lowest bits of the hash: each part that a watch or a change goes
        # through looks for the user.
        self._recent: list[tuple[str | None, int | None]] = [_NOBODY] * MAX_RECENT

    def __len__(self) -> int:
        return self._count

    def find(self, uid: str) -> int | None:
        """Return the slot of a user; None if the user is not held."""
        recent, slot = self._recent[hash(uid) & _RECENT_MASK]
        if recent == uid:
            return slot
        hashed = hash(uid)
        _, _, rest = self._buckets[self._bucket(hashed)].partition(_key(uid))
        slot = int(rest[:_SLOT_DIGITS], 16) if rest else None
        self._recent[hashed & _RECENT_MASK] = uid, slot
        return slot

    def hold(self, uid: str) -> int:
        """Hold a user once more, and return the slot, which is the user's until as many `release`.

        Raises:
            OverflowError: `MAX_HOLDS` of the user, or 16 million users, and no more.
        """
        slot = self.find(uid)
        if slot is not None:
            self._holds[slot] += 1
            return slot
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._hashes)
            if slot >> 4 * _SLOT_DIGITS:
                raise OverflowError("no slot is left")
            self._hashes.append(0)
            self._holds.append(0)
            self._shards.append(NO_SHARD)
        self._recent[hash(uid) & _RECENT_MASK] = uid, slot
        self._hashes[slot] = hash(uid) & _HASH_MASK
        self._holds[slot] = 1
        user = b"%b%06x\xff" % (_key(uid)[1:], slot)
        self._buckets[self._bucket(self._hashes[slot])] += user
        self._count += 1
        self.name_bytes += len(user) - _SLOT_DIGITS - 2
        if self._count > USERS_PER_BUCKET * len(self._buckets):
            self._split()
        return slot

    def release(self, slot: int) -> None:
        """End one hold of a user; after the last one the slot may be another user's."""
        self._holds[slot] -= 1
        if self._holds[slot]:
            return
        self._count -= 1
        self._recent[self._hashes[slot] & _RECENT_MASK] = _NOBODY
        if not self._count:
            self._clear()
            return
        number = self._bucket(self._hashes[slot])
        bucket = self._buckets[number]
        begin, end = self._place(bucket, slot)
        self.name_bytes -= end - begin
        self._buckets[number] = bucket[:begin] + bucket[end + _SLOT_DIGITS + 2 :]
        self._shards[slot] = NO_SHARD
        self._free.append(slot)

    def name(self, slot: int) -> str:
        """Return the user of a slot that is held."""
        bucket = self._buckets[self._bucket(self._hashes[slot])]
        begin, end = self._place(bucket, slot)
        return bucket[begin:end].decode("utf-8", "surrogatepass")

    def set_shard(self, slot: int, shard: int) -> None:
        """Let `walk` of a shard find a user; `NO_SHARD`: of none."""
        self._shards[slot] = shard

    def walk(self, shard: int, begin: int, most: int) -> tuple[list[int], int]:
        """Return some slots of users of a shard, perhaps none, and where to begin next; 0: that was all.

        A walk from 0 to the end meets each user who is in the shard all the time exactly once.
        """
        shards = self._shards[begin : begin + WALK_FACTOR * most]
        slots = [slot for slot, each in enumerate(shards, begin) if each == shard][:most]
        following = slots[-1] + 1 if len(slots) == most else begin + len(shards)
        return slots, following if following < len(self._shards) else 0

    def _clear(self) -> None:
        self.name_bytes = 0
        self._buckets = [_USER]
        self._unsplit = self._hash_bits = 0
        for column in (self._hashes, self._holds, self._shards, self._free):
            del column[:]

    def _bucket(self, hashed: int) -> int:
        """Return the bucket of a hash. Buckets that are split already depend on one more bit of it."""
        number = hashed & ((1 << self._hash_bits) - 1)
        if number < self._unsplit:
            number = hashed & ((2 << self._hash_bits) - 1)
        return number

    def _split(self) -> None:
        """Move those users of the next bucket to a new one whose next bit of the hash is 1."""
        users = self._buckets[self._unsplit].split(_USER)[1:-1]
        parts = [_USER], [_USER]
        for user in users:
            slot = int(user[-_SLOT_DIGITS:], 16)
            parts[self._hashes[slot] >> self._hash_bits & 1].append(user + _USER)
        self._buckets[self._unsplit] = b"".join(parts[0])
        self._buckets.append(b"".join(parts[1]))
        self._unsplit += 1
        if self._unsplit == 1 << self._hash_bits:
            self._unsplit, self._hash_bits = 0, self._hash_bits + 1

    @staticmethod
    def _place(bucket: bytes, slot: int) -> tuple[int, int]:
        """Return where the name of a slot's user begins and ends in its bucket."""
        end = bucket.index(b"\xfe%06x\xff" % slot)
        return bucket.rindex(_USER, 0, end) + 1, end


def _key(uid: str) -> bytes:
    return b"\xff%b\xfe" % uid.encode("utf-8", "surrogatepass")
