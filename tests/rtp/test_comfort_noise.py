from __future__ import annotations

import audioop

import pytest

from callagent.audio import FRAME_BYTES
from callagent.rtp.concealment import ComfortNoise


@pytest.mark.parametrize(("level", "rms"), [(30, 1036), (50, 104), (70, 10)])
def test_noise_has_the_level_that_the_peer_says(level: int, rms: int) -> None:
    noise = ComfortNoise(bytes([level, 1, 2, 3]))
    frames = [noise.frame() for _ in range(50)]
    assert {len(frame) for frame in frames} == {FRAME_BYTES}
    assert audioop.rms(b"".join(frames), 2) == pytest.approx(rms, rel=0.15)
    assert len(set(frames)) > 10


def test_an_empty_description_is_not_valid() -> None:
    with pytest.raises(ValueError, match="not valid"):
        ComfortNoise(b"")
