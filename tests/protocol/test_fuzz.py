"""Whatever arrives, the only exception is `ProtocolError`."""

import random
from collections import Counter

from protocol import FRAME_LIMIT_BYTES, Decoder, ProtocolError
from tests.protocol.hostile import hostile_frame

SEED = 1
FRAMES = 100_000


def test_random_and_mutated_frames_raise_nothing_else() -> None:
    rng = random.Random(SEED)
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
    print(f"frames {FRAMES}, other exceptions 0, {dict(outcomes)}")
    assert unprintable == 0, "a refusal must not echo what it refuses"
    assert orphaned == 0, "an id without a kind"
    # A test that reached only one of these would prove nothing about the others.
    assert (
        min(outcomes[name] for name in ("packet", "protocol_error", "too_large", "incomplete"))
        > FRAMES // 200
    )
