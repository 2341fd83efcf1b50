"""For any input the only exception is `ProtocolError`."""

import random
import struct
from collections import Counter

from presence.protocol import FRAME_LIMIT_BYTES, Decoder, ProtocolError
from tests.protocol.vectors import BAD, GOOD

FRAMES = 25_000
FRAMES_KNOWN = [*(vector.frame for vector in GOOD), *(vector.frame for vector in BAD)]
BODIES = [frame[4:] for frame in FRAMES_KNOWN if 4 < len(frame) < 2048]
# First bytes of interesting values: containers, strings with lengths, ext, floats, unused.
TAGS = bytes((*range(0x80, 0xA4), *range(0xC0, 0xE0)))


def hostile_frame(rng: random.Random) -> bytes:
    """Return a damaged vector, or random bytes; nine in ten have a correct length prefix."""
    body = bytearray(rng.choice(BODIES) if rng.randrange(4) else rng.randbytes(rng.randint(1, 40)))
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(5):
            case 0:
                body[at : at + 1] = bytes([rng.choice(TAGS)])
            case 1:
                body[at:at] = rng.randbytes(rng.randint(1, 4))
            case 2:
                del body[at : at + rng.randint(1, 8)]
            case 3:
                body[at:] = rng.choice(BODIES)[at:]
            case 4:
                body[at : at + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff"])
    length = len(body) if rng.randrange(10) else rng.choice((0, 1, len(body) + 1, rng.randrange(2**32)))
    return struct.pack("!I", length) + body


def test_random_and_mutated_frames_raise_nothing_else() -> None:
    rng = random.Random(1)
    outcomes: Counter[str] = Counter()
    unprintable = orphaned = 0
    for number in range(FRAMES):
        frame = hostile_frame(rng)
        decoder = Decoder(FRAME_LIMIT_BYTES)
        decoder.feed(frame)
        try:
            outcome = "incomplete" if decoder.next() is None else "packet"
        except ProtocolError as error:
            outcome = error.code.reason
            unprintable += not error.message.isprintable()
            orphaned += error.id is not None and error.kind is None
        except Exception as error:
            error.add_note(f"frame {number}: {frame.hex()}")
            raise
        outcomes[outcome] += 1
    assert unprintable == 0, "a refusal must not echo what it refuses"
    assert orphaned == 0, "an id without a kind"
    # A test that reached only one of these would prove nothing about the others.
    assert min(outcomes[each] for each in ("packet", "protocol_error", "too_large", "incomplete")) > 200
