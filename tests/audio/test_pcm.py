from __future__ import annotations

import audioop
import struct
import sys
from collections.abc import Callable
from math import log10, pi, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.audio import Decimator
from callagent.audio import pcm as module

FACTORS = [2, 3, 6]
FILTERS = [module._filter_by_audioop, pytest.param(module._filter_by_numpy, marks=pytest.mark.local)]


def opened(factor: int, chosen: Callable[..., bytes]) -> Decimator:
    opened = Decimator(factor)
    opened._filter = chosen
    return opened


def tone(hertz: float, rate: int, amplitude: int = 16000, seconds: float = 0.5) -> bytes:
    count = int(rate * seconds)
    return struct.pack(f"<{count}h", *(round(amplitude * sin(2 * pi * hertz * n / rate)) for n in range(count)))


def decibels(pcm: bytes, reference: bytes) -> float:
    return 20 * log10(max(1, audioop.rms(pcm, 2)) / audioop.rms(reference, 2))


@pytest.mark.parametrize("chosen", FILTERS)
@pytest.mark.parametrize("factor", FACTORS)
def test_the_telephone_band_passes_and_nothing_folds_back_into_it(factor: int, chosen: Callable[..., bytes]) -> None:
    rate = 8000 * factor
    for hertz, lowest, highest in ((300, -0.2, 0.2), (1000, -0.2, 0.2), (2500, -1.0, 0.5), (5500, -99.0, -30.0)):
        sound = tone(hertz, rate)
        if hertz < rate / 2:
            assert lowest <= decibels(opened(factor, chosen).feed(sound), sound) <= highest, hertz


@given(st.data(), st.sampled_from(FACTORS), st.binary(min_size=1, max_size=4000))
def test_pieces_of_any_length_are_the_whole(data: st.DataObject, factor: int, pcm: bytes) -> None:
    whole, pieces = opened(factor, module._filter_by_audioop), opened(factor, module._filter_by_audioop)
    heard, rest = b"", pcm
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        heard, rest = heard + pieces.feed(rest[:size]), rest[size:]
    assert heard == whole.feed(pcm)
    assert len(heard) == 2 * -(-(len(pcm) // 2) // factor)


@pytest.mark.local
@given(st.sampled_from(FACTORS), st.binary(min_size=2, max_size=4000))
def test_both_filters_say_the_same(factor: int, pcm: bytes) -> None:
    # Quieter than what either would have to clip on its way.
    pcm = audioop.mul(pcm[: len(pcm) // 2 * 2], 2, 0.4)
    one = opened(factor, module._filter_by_audioop).feed(pcm)
    other = opened(factor, module._filter_by_numpy).feed(pcm)
    assert len(one) == len(other)
    difference = audioop.add(one, audioop.mul(other, 2, -1), 2)
    assert not difference or audioop.max(difference, 2) <= 1


@pytest.mark.parametrize("chosen", FILTERS)
def test_the_loudest_sound_does_not_turn_over(chosen: Callable[..., bytes]) -> None:
    loud = (struct.pack("<h", 32767) * 60 + struct.pack("<h", -32768) * 60) * 20
    heard = struct.unpack("<800h", opened(3, chosen).feed(loud))
    # Well inside a half wave the sign is the sound's own.
    assert all(sample > 30000 for sample in heard[10:18])
    assert all(sample < -30000 for sample in heard[30:38])


def test_numpy_is_taken_where_it_is_loaded_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", object())
    assert Decimator()._filter is module._filter_by_numpy
    monkeypatch.delitem(sys.modules, "numpy")
    assert Decimator()._filter is module._filter_by_audioop
