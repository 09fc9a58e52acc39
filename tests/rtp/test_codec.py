from __future__ import annotations

import pytest

from callagent.rtp.codec import PCMA, PCMU, Codec, codec_by_name
from tests.rtp.streams import tone


@pytest.mark.parametrize(("codec", "silence"), [(PCMU, 0xFF), (PCMA, 0xD5)])
def test_both_laws_keep_the_sound(codec: Codec, silence: int) -> None:
    frame = tone(0)
    payload = codec.encode(frame)
    assert len(payload) == 160
    assert codec.encode(codec.decode(payload)) == payload
    assert codec.encode(bytes(2)) == bytes([silence])


def test_names_are_case_insensitive() -> None:
    assert codec_by_name("pcmu") is PCMU
    assert codec_by_name("PCMA") is PCMA
    assert codec_by_name("opus") is None
    assert str(PCMA) == "PCMA/8000"
