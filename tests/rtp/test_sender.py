from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from callagent.rtp import sender as sender_module
from callagent.rtp.codec import PCMA, PCMU, Codec, RtpParameters, open_codec
from callagent.rtp.packet import FRAMES_PER_DIGIT, RtpPacket, TelephoneEvent
from callagent.rtp.sender import RtpSender
from tests.rtp.streams import tone


def frames(sender: RtpSender, count: int) -> list[RtpPacket]:
    return [RtpPacket.parse(sender.frame_to_send(None)) for _ in range(count)]


def test_the_stream_is_continuous_and_silent_where_there_is_nothing_to_say() -> None:
    sender = RtpSender(PCMU)
    sent = [RtpPacket.parse(sender.frame_to_send(pcm)) for pcm in (tone(0), None, tone(1))]
    assert [packet.payload for packet in sent] == [PCMU.encode(tone(0)), b"\xff" * 160, PCMU.encode(tone(1))]
    assert [(packet.sequence - sent[0].sequence) & 0xFFFF for packet in sent] == [0, 1, 2]
    assert [(packet.timestamp - sent[0].timestamp) & 0xFFFFFFFF for packet in sent] == [0, 160, 320]
    assert not any(packet.marker for packet in sent)
    assert (sender.packets, sender.octets) == (3, 480)


def test_numbers_wrap() -> None:
    sender = RtpSender(PCMU)
    sent = frames(sender, 70000)
    for before, after in itertools.pairwise(sent):
        assert after.sequence == (before.sequence + 1) & 0xFFFF


def test_a_digit_replaces_the_audio_and_then_a_talkspurt_begins() -> None:
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(PCMU, 96))
    sender.press("5#")
    sent = frames(sender, 2 * FRAMES_PER_DIGIT + 1)
    assert not sender.is_pressing
    events = [packet for packet in sent if packet.payload_type == 96]
    assert [TelephoneEvent.parse(packet.payload).event for packet in events] == [5] * 8 + [11] * 8
    assert len({packet.timestamp for packet in events}) == 2
    assert events[0].timestamp == sent[0].timestamp
    assert [index for index, packet in enumerate(sent) if packet.marker] == [0, 8, 11, 19]
    # Time went on under the event.
    assert (sent[8].timestamp - sent[0].timestamp) & 0xFFFFFFFF == 8 * 160


def test_skipped_frames_move_the_timestamp_only() -> None:
    sender = RtpSender(PCMU)
    (before,) = frames(sender, 1)
    sender.skip(8)
    sender.resume()
    (after,) = frames(sender, 1)
    assert (after.sequence - before.sequence) & 0xFFFF == 1
    assert (after.timestamp - before.timestamp) & 0xFFFFFFFF == 9 * 160
    assert after.marker


def test_a_new_codec_is_used_from_the_next_frame_on() -> None:
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(PCMA))
    (packet,) = frames(sender, 1)
    assert (packet.payload_type, packet.payload) == (8, b"\xd5" * 160)


def test_digits_that_are_no_longer_negotiated_are_audio() -> None:
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(PCMU, 101))
    sender.press("1")
    sender.use(RtpParameters(PCMU))
    assert {packet.payload_type for packet in frames(sender, 11)} == {0}


def test_one_wrong_digit_refuses_all() -> None:
    sender = RtpSender(PCMU)
    with pytest.raises(ValueError, match="'x'"):
        sender.press("12x")
    assert not sender.is_pressing
    sender.press("1")
    sender.drop_digits()
    assert not sender.is_pressing


def test_digits_and_audio_of_another_clock_rate() -> None:
    calls: list[bytes] = []

    def encode(pcm: bytes) -> bytes:
        calls.append(pcm)
        return b"opus"

    codec = Codec("OPUS", 107, 48000, encode, lambda payload: payload, is_stateful=True)
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(codec, 103, 48000))
    sender.press("1")
    sent = frames(sender, FRAMES_PER_DIGIT + 2)
    events = [TelephoneEvent.parse(packet.payload) for packet in sent[:8]]
    assert [event.duration for event in events] == [960, 1920, 2880, 3840, 4800, 4800, 4800, 4800]
    assert (sent[-1].timestamp - sent[-2].timestamp) & 0xFFFFFFFF == 960
    # What remembers hears every silence.
    assert calls == [bytes(320)] * 5


def test_a_codec_that_remembers_goes_on_after_a_new_offer() -> None:
    first = Codec("OPUS", 107, 48000, lambda pcm: b"first", lambda payload: payload, is_stateful=True)
    again = Codec("OPUS", 107, 48000, lambda pcm: b"again", lambda payload: payload, is_stateful=True)
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(first))
    sender.use(RtpParameters(again))
    assert frames(sender, 1)[0].payload == b"first"


@pytest.mark.parametrize("count", [2, 3])
def test_longer_packets_hold_several_frames_and_carry_the_time_of_their_first(count: int) -> None:
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(PCMU, 101, packet_frames=count))
    sender.resume()
    start = sender.timestamp
    datagrams = [sender.frame_to_send(tone(index)) for index in range(4 * count)]
    sent = [RtpPacket.parse(each) for each in datagrams if each]
    assert [bool(each) for each in datagrams] == [index % count == count - 1 for index in range(4 * count)]
    assert b"".join(each.payload for each in sent) == b"".join(PCMU.encode(tone(index)) for index in range(4 * count))
    assert [(each.timestamp - start) & 0xFFFFFFFF for each in sent] == [160 * count * index for index in range(4)]
    assert [(each.sequence - sent[0].sequence) & 0xFFFF for each in sent] == [0, 1, 2, 3]
    assert [each.marker for each in sent] == [True, False, False, False]


def test_keys_between_longer_packets_and_a_return_to_short_ones_keep_time() -> None:
    sender = RtpSender(PCMU)
    sender.use(RtpParameters(PCMU, 101, packet_frames=2))
    start = sender.timestamp
    assert sender.frame_to_send(None) == b""
    sender.press("1")
    events = [RtpPacket.parse(sender.frame_to_send(None)) for _ in range(8)]
    assert {(each.timestamp - start) & 0xFFFFFFFF for each in events} == {160}
    pairs = [sender.frame_to_send(None) for _ in range(4)]
    assert [bool(each) for each in pairs] == [False, True, False, True]
    first = RtpPacket.parse(pairs[1])
    assert ((first.timestamp - start) & 0xFFFFFFFF, first.marker) == (9 * 160, True)
    assert sender.frame_to_send(None) == b""
    sender.use(RtpParameters(PCMU, 101))
    (short,) = frames(sender, 1)
    assert ((short.timestamp - start) & 0xFFFFFFFF, len(short.payload)) == (14 * 160, 160)


def interrupted(step: int, interrupt: Callable[[], None], work: Callable[[], bytes]) -> tuple[bytes, bool]:
    """Do `work` and, before its line number `step` in the sender's module, `interrupt`, as another thread might.

    The second value says whether the work has so many lines.
    """
    lines = itertools.count()
    traced, reached = sys.gettrace(), False

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal reached
        if frame.f_code.co_filename != sender_module.__file__:
            return None
        if event == "line" and next(lines) == step:
            reached = True
            sys.settrace(None)
            interrupt()
        return trace

    sys.settrace(trace)
    try:
        done = work()
    finally:
        sys.settrace(traced)
    return done, reached


@pytest.mark.parametrize("before", [0, 1, 2])
def test_an_offer_in_the_middle_of_a_packet_leaves_it_whole(before: int) -> None:
    other = RtpParameters(PCMA, 101, packet_frames=2)
    for step in itertools.count():
        sender = RtpSender(PCMU)
        sender.use(RtpParameters(PCMU, 101, packet_frames=3))
        collected = [sender.frame_to_send(tone(index)) for index in range(before)]
        assert collected == [b""] * before
        datagram, reached = interrupted(step, partial(sender.use, other), partial(sender.frame_to_send, tone(before)))
        if not reached:
            break
        datagrams = [datagram, *(sender.frame_to_send(tone(9)) for _ in range(6))]
        sent = [RtpPacket.parse(each) for each in datagrams if each]
        # A packet is one of the old kind or of the new kind, and nothing is missing in it.
        assert {(each.payload_type, len(each.payload)) for each in sent} <= {(0, 480), (8, 320)}
        assert all(each.payload_type == 8 for each in sent[1:])
    assert step > 10


@pytest.mark.parametrize("name", ["G722", "OPUS"])
def test_longer_packets_of_codecs_with_a_memory_are_heard_whole(name: str) -> None:
    codec, other = open_codec(name), open_codec(name)
    if codec is None or other is None:
        pytest.skip(f"{name} is not installed")
    sender = RtpSender(codec)
    sender.use(RtpParameters(codec, packet_frames=3))
    datagrams = [sender.frame_to_send(tone(index)) for index in range(30)]
    pcm = [other.decode(RtpPacket.parse(each).payload) for each in datagrams if each]
    assert [len(each) for each in pcm] == [960] * 10


def test_tones_replace_the_audio_and_end() -> None:
    sender = RtpSender(PCMU)
    sender.play([tone(0, 697.0), tone(1, 697.0)])
    assert sender.is_pressing
    sent = [RtpPacket.parse(sender.frame_to_send(tone(9))) for _ in range(3)]
    assert [each.payload for each in sent] == [PCMU.encode(each) for each in (tone(0, 697.0), tone(1, 697.0), tone(9))]
    assert not sender.is_pressing
