"""Uids in many scripts, from the wire to the events and back: bytes decide, nothing is normalised."""

import unicodedata

from presence import protocol
from presence.protocol import Kind
from presence.reader import PresenceReader
from presence.subscriber import Online, subscribe_sync
from tests.support.line import Line
from tests.support.preloaded import PreloadedServer
from tests.support.waiting import wait_for

SCRIPTS = {
    **{"latin": "Zoë", "cyrillic": "Юлия", "greek": "Ἀθηνᾶ", "hebrew": "דנה", "arabic": "ليلى"},
    **{"devanagari": "अनीता", "thai": "สมชาย", "han": "李小龍", "kana": "さくらサクラ", "hangul": "지민"},
    **{"ethiopic": "ሰላም", "georgian": "ნინო", "armenian": "Անի", "tamil": "மீனா", "emoji": "👩\u200d🚀"},
    **{"beyond the basic plane": "𐍈𝒜𠜎", "bidirectional": "a\u202eb", "combining": "q\u0323\u0307"},
    **{"longest": "漢" * 42 + "ab"},
}


def test_a_uid_of_any_script_is_the_same_everywhere() -> None:
    composed, decomposed = (unicodedata.normalize(form, "Zoë") for form in ("NFC", "NFD"))
    uids = {*SCRIPTS.values(), composed, decomposed}
    with PreloadedServer("--workers", "2") as server:
        lines = {uid: Line(server.address, protocol.login(uid)) for uid in uids}
        asking = lines[decomposed]

        def states() -> dict[str, str]:
            answer = asking.ask(protocol.query([*uids, composed.upper()])).payload["presence"]
            return {uid: state["status"] for uid, state in answer.items()}

        wanted = {**dict.fromkeys(uids, "online"), composed.upper(): "offline"}
        wait_for(lambda: states() == wanted)
        for uid in uids:
            assert asking.ask(protocol.message(uid, uid)).payload == {"delivered": 1}
        for uid, line in lines.items():
            bodies = [each.payload["body"] for each in line.gather(0.1) if each.kind == Kind.DELIVER]
            assert bodies == [uid]
        with subscribe_sync(server.redis_url, after="0") as events:
            assert {each.uid for each in iter(events.poll, None) if isinstance(each, Online)} == uids
        with PresenceReader(server.redis_url) as reader:
            assert {uid: reader.state(uid)["status"] for uid in uids} == dict.fromkeys(uids, "online")
        for line in lines.values():
            line.close()
