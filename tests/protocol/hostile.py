"""Frames that no honest client sends, for the codec alone and for a server on real sockets."""

import random
import struct

from tests.protocol.vectors import BAD, GOOD

VECTORS = [*(vector.frame for vector in GOOD), *(vector.frame for vector in BAD)]
BODIES = [frame[4:] for frame in VECTORS if 4 < len(frame) < 2048]
# First bytes that begin something interesting: containers, strings with lengths, ext, floats, unused.
TAGS = bytes((*range(0x80, 0xA4), *range(0xC0, 0xE0)))


def _mutated(rng: random.Random) -> bytes:
    body = bytearray(rng.choice(BODIES))
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0:
                body[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                body[at : at + 1] = bytes([rng.choice(TAGS)])
            case 2:
                body[at:at] = rng.randbytes(rng.randint(1, 4))
            case 3:
                del body[at : at + rng.randint(1, 8)]
            case 4:
                body[at:] = rng.choice(BODIES)[at:]
            case 5:
                body[at : at + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"])
    return bytes(body)


def _random(rng: random.Random) -> bytes:
    if rng.randrange(2):
        return rng.randbytes(rng.randint(1, 40))
    head = bytes([0x93, rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 64, 65, 66, 67, 68)), rng.randrange(128)])
    return head + bytes(rng.choice(TAGS) if rng.randrange(3) else rng.randrange(256) for _ in range(20))


def hostile_frame(rng: random.Random) -> bytes:
    """Return a random or mutated frame; nine in ten have a right length prefix."""
    body = _mutated(rng) if rng.randrange(4) else _random(rng)
    if rng.randrange(10):
        return struct.pack("!I", len(body)) + body
    return struct.pack("!I", rng.choice((0, 1, len(body) + 1, rng.randrange(2**32)))) + body
