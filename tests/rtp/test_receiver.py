from __future__ import annotations

import audioop
import random
import struct
from collections.abc import Iterable
from ipaddress import ip_network
from math import pi, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.audio import FRAME_BYTES
from callagent.rtp.codec import PCMA, PCMU, RtpParameters
from callagent.rtp.packet import RtpPacket
from callagent.rtp.receiver import Received, Remote, RtpReceiver, Source
from callagent.rtp.sender import RtpSender
from callagent.rtp.srtp import SrtpKeys, SrtpSender
from tests.lossy_link import BAD, Damage, LossyLink
from tests.rtp.streams import PEER, Arrival, audio, jittery, lossy, tone

STRANGER = ("198.51.100.9", 4000)


def connected(telephone_event: int | None = 101) -> RtpReceiver:
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    receiver.connect(PEER, RtpParameters(PCMU, telephone_event), 0.0)
    return receiver


def play(receiver: RtpReceiver, arrivals: Iterable[Arrival]) -> list[Received]:
    """Receive as a session does, with its timers."""
    received: list[Received] = []
    tick = 0.1
    for at, packet in arrivals:
        while tick <= at:
            received += receiver.tick(tick)
            tick += 0.1
        while (timer := receiver.next_timer()) is not None and timer <= at:
            received += receiver.tick(timer)
        received += receiver.receive(bytes(packet), PEER, at)
    return received


def decoded(index: int) -> bytes:
    return PCMU.decode(PCMU.encode(tone(index)))


def test_a_clean_stream_comes_out_as_it_was_at_once() -> None:
    receiver = connected()
    for index, (at, packet) in enumerate(audio(100)):
        assert receiver.receive(bytes(packet), PEER, at) == [decoded(index)]
    assert receiver.reception.jitter == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.2, 0.3])
def test_lost_packets_are_concealed_and_time_is_kept(share: float) -> None:
    receiver = connected()
    arrivals = [next(iter(audio(1))), *lossy(audio(1000), share)[1:]]
    frames = play(receiver, arrivals)
    assert abs(len(frames) - 1000) <= 12
    assert all(len(frame) == FRAME_BYTES for frame in frames)
    # A steady tone: nowhere, except in long gaps, does the level fall.
    quiet = sum(1 for frame in frames if isinstance(frame, bytes) and audioop.rms(frame, 2) < 2000)
    assert quiet <= 1000 * share**4 * 2 + 2


def test_reordered_and_doubled_packets_make_no_repeated_or_swapped_sound() -> None:
    receiver, chance = connected(), random.Random(2)
    payloads = [chance.randbytes(160) for _ in range(500)]
    numbered = [(index * 0.02, RtpPacket(0, index, index * 160, 7, each)) for index, each in enumerate(payloads)]
    frames = play(receiver, [each for arrival in jittery(numbered, 0.03) for each in (arrival, arrival)])
    # The second half of a frame is as it was sent: only its first 5 ms may be blended.
    known = {PCMU.decode(payload)[160:]: index for index, payload in enumerate(payloads)}
    order = [known[frame[160:]] for frame in frames if isinstance(frame, bytes) and frame[160:] in known]
    assert order == sorted(set(order))
    assert len(order) >= 490 - receiver.buffer.late
    assert receiver.buffer.late < 25
    assert receiver.buffer.duplicates >= 475


@pytest.mark.parametrize("milliseconds", [10, 30, 40, 60])
def test_other_packet_times_are_cut_to_frames(milliseconds: int) -> None:
    receiver = connected()
    samples = 8 * milliseconds
    frames: list[Received] = []
    for index in range(60):
        payload = PCMU.encode(tone(index, samples=samples))
        packet = RtpPacket(0, index, index * samples, 7, payload)
        frames += receiver.receive(bytes(packet), PEER, index * milliseconds / 1000)
    assert frames == [decoded(index) for index in range(60 * milliseconds // 20)]


def test_strangers_unknown_types_and_garbage_are_refused() -> None:
    receiver = connected()
    packet = bytes(next(audio(1))[1])
    assert RtpReceiver(RtpParameters(PCMU), 0).receive(packet, PEER, 0.0) == []
    assert receiver.receive(packet, STRANGER, 0.0) == []
    assert receiver.receive(b"\x80", PEER, 0.0) == []
    assert receiver.receive(bytes(RtpPacket(96, 1, 1, 7, b"x")), PEER, 0.0) == []
    assert receiver.receive(bytes(RtpPacket(101, 2, 1, 7, b"x")), PEER, 0.0) == []
    assert receiver.refused_total == 4
    assert receiver.remote is not None
    assert receiver.remote.address == PEER


def test_a_new_stream_is_heard_within_200_ms() -> None:
    receiver = connected()
    play(receiver, audio(50))
    frames: list[Received] = []
    for at, packet in audio(8, ssrc=99, sequence=5, timestamp=5, start=1.0):
        frames += receiver.receive(bytes(packet), PEER, at)
    assert frames == [decoded(index) for index in range(8)]


def test_a_jump_of_the_timestamp_alone_is_heard_at_once() -> None:
    receiver = connected()
    play(receiver, audio(50, sequence=0))
    ((_, packet),) = audio(1, sequence=50, timestamp=77)
    assert receiver.receive(bytes(packet), PEER, 1.0) == [decoded(0)]


def test_a_peer_that_stops_in_silence_is_heard_as_silence_by_the_clock() -> None:
    receiver = connected()
    play(receiver, audio(50))
    frames = [frame for tick in range(10, 30) for frame in receiver.tick(tick / 10)]
    # Behind the clock by what a late packet would be held.
    assert len(frames) == pytest.approx((2.9 - 0.04 - 0.98) / 0.02, abs=1)
    assert frames[-1] == bytes(FRAME_BYTES)
    ((_, packet),) = audio(1, sequence=65500 + 50, timestamp=(4294967000 + 160 * 150) % 2**32)
    after = receiver.receive(bytes(packet), PEER, 3.0)
    assert len(frames) + len(after) == pytest.approx((3.0 - 0.98) / 0.02, abs=1)


def test_on_hold_nothing_is_heard_and_afterwards_all_is() -> None:
    receiver = connected()
    play(receiver, audio(10))
    receiver.hold(True, 0.2)
    held = list(audio(20))[10:]
    assert [frame for at, packet in held for frame in receiver.receive(bytes(packet), PEER, at)] == []
    assert receiver.tick(0.9) == []
    receiver.hold(False, 0.4)
    ((_, packet),) = list(audio(21))[20:]
    assert receiver.receive(bytes(packet), PEER, 0.4) == [decoded(20)]


def test_a_new_address_and_codec_are_followed_at_once_and_the_old_address_is_a_stranger() -> None:
    receiver = connected()
    play(receiver, audio(10))
    receiver.connect(("192.0.2.77", 6000), RtpParameters(PCMA, 101), 0.2)
    ((_, old),) = list(audio(11))[10:]
    assert receiver.receive(bytes(old), PEER, 0.2) == []
    packet = RtpPacket(8, 1, 1, 5, PCMA.encode(tone(0)))
    assert receiver.receive(bytes(packet), ("192.0.2.77", 6000), 0.2) == [PCMA.decode(packet.payload)]


def key_presses(digits: str, seed: int, damage: Damage) -> str:
    """What is read of `digits` sent through a bad network."""
    link = LossyLink(damage, seed)
    sender, receiver = RtpSender(PCMU), connected()
    sender.use(RtpParameters(PCMU, 101))
    sender.press(digits)
    arrivals: list[tuple[float, bytes]] = []
    at = 0.0
    while sender.is_pressing:
        packet = sender.frame_to_send(None)
        arrivals += [(at + delay, packet) for delay in link.delays()]
        at += 0.02
    read: list[str] = []
    for now, packet in sorted(arrivals, key=lambda each: each[0]):
        while (timer := receiver.next_timer()) is not None and timer <= now:
            read += [item for item in receiver.tick(timer) if isinstance(item, str)]
        read += [item for item in receiver.receive(packet, PEER, now) if isinstance(item, str)]
    assert link.lost > 0.8 * damage.loss * (link.lost + link.passed)
    return "".join(read)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", BAD)
def test_a_thousand_digits_through_a_bad_network_each_once_and_in_order(share: float, seed: int) -> None:
    digits = "".join(random.Random(seed).choices("0123456789*#ABCD", k=1000))
    assert key_presses(digits, seed, BAD[share]) == digits


@given(st.lists(st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: b"\x80\x00\x00\x01" + data)))
def test_whatever_the_peer_sends_only_frames_and_digits_come_out(datagrams: list[bytes]) -> None:
    receiver = connected()
    for index, data in enumerate(datagrams):
        for item in receiver.receive(data, PEER, index * 0.02) + receiver.tick(index * 0.02):
            assert isinstance(item, str) or len(item) == FRAME_BYTES


def test_corrupt_packets_leave_the_rest_of_the_stream_alone() -> None:
    chance = random.Random(5)
    receiver, frames = connected(), 0
    for at, packet in audio(2000):
        data = bytearray(bytes(packet))
        if chance.random() < 0.02:
            data[chance.randrange(12)] ^= 1 << chance.randrange(8)
        frames += len(receiver.receive(bytes(data), PEER, at))
    assert 1900 < frames < 2200
    assert receiver.packets > 1950


def test_comfort_noise_is_heard_by_the_clock_until_the_peer_speaks() -> None:
    receiver = connected()
    play(receiver, audio(50, sequence=0, timestamp=0))
    noise = RtpPacket(13, 50, 50 * 160, 7, bytes([30]))
    heard = play(receiver, [(1.0, noise)])
    at = 1.0
    while at < 2.0:
        timer = receiver.next_timer()
        assert timer is not None
        assert 0 < timer - at <= 0.02 + 1e-6
        at = timer
        heard += receiver.tick(at)
    assert len(heard) == pytest.approx(50, abs=1)
    assert all(isinstance(frame, bytes) and 500 < audioop.rms(frame, 2) < 2000 for frame in heard)
    (speech,) = audio(1, sequence=51, timestamp=100 * 160)
    after = play(receiver, [(2.0, speech[1])])
    assert len(heard) + len(after) == 51
    assert after[-1] == decoded(0)
    assert receiver.next_timer() is None
    assert receiver.refused_total == 0


def test_an_empty_comfort_noise_packet_is_refused() -> None:
    receiver = connected()
    assert receiver.receive(bytes(RtpPacket(13, 1, 1, 7, b"")), PEER, 0.0) == []
    assert receiver.refused_total == 1


def test_a_lost_packet_is_bridged_from_both_sides() -> None:
    receiver = connected(None)
    arrivals = list(audio(12))
    del arrivals[10]
    frames = play(receiver, [*arrivals, *audio(2, sequence=65500 + 12, timestamp=(4294967000 + 12 * 160) % 2**32)])
    missed = frames[10]
    assert isinstance(missed, bytes)
    error = audioop.add(missed, audioop.mul(decoded(10), 2, -1), 2)
    assert audioop.rms(error, 2) < 0.15 * audioop.rms(missed, 2)


def test_both_numbers_of_a_codec_are_heard_when_the_answer_chose_another() -> None:
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    receiver.connect(PEER, RtpParameters(PCMU, 101, offered_payload_type=96, offered_telephone_event=97), 0.0)
    payload = PCMU.encode(tone(0))
    assert receiver.receive(bytes(RtpPacket(0, 1, 0, 7, payload)), PEER, 0.0) == [decoded(0)]
    assert receiver.receive(bytes(RtpPacket(96, 2, 160, 7, payload)), PEER, 0.02) == [decoded(0)]
    event = b"\x05\x0a\x00\xa0"
    assert receiver.receive(bytes(RtpPacket(97, 3, 320, 7, event)), PEER, 0.04) == ["5"]


def test_a_peer_behind_a_translator_is_heard_from_its_first_packet() -> None:
    receiver = connected()
    behind = (PEER[0], 62000)
    assert receiver.remote is not None
    arrivals = list(audio(50))
    for at, packet in arrivals[:4]:
        assert receiver.receive(bytes(packet), behind, at) == []
    assert (receiver.remote.address, receiver.refused) == (PEER, 4)
    at, packet = arrivals[4]
    assert receiver.receive(bytes(packet), behind, at) == [decoded(index) for index in range(5)]
    assert (receiver.remote.address, receiver.refused, receiver.packets) == (behind, 0, 5)
    for index, (at, packet) in enumerate(arrivals[5:], 5):
        assert receiver.receive(bytes(packet), behind, at) == [decoded(index)]
    assert receiver.reception.jitter == pytest.approx(0, abs=0.01)
    assert receiver.reception.expected == receiver.packets == 50


def test_what_is_not_the_peers_key_is_not_heard_and_latches_nothing() -> None:
    key, other = bytes(range(30)), bytes(30)
    keys = SrtpKeys("AES_CM_128_HMAC_SHA1_80", other, "AES_CM_128_HMAC_SHA1_80", key)
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    receiver.connect(PEER, RtpParameters(PCMU, keys=keys), 0.0)
    natted = (PEER[0], 9999)
    attacker = SrtpSender("AES_CM_128_HMAC_SHA1_80", other)
    for at, packet in audio(10):
        assert receiver.receive(bytes(packet), (PEER[0], 6666), at) == []
        assert receiver.receive(attacker.protect(bytes(packet)), (PEER[0], 6666), at) == []
    assert receiver.refused_total == 20
    peer = SrtpSender("AES_CM_128_HMAC_SHA1_80", key)
    heard = [frame for at, packet in audio(10) for frame in receiver.receive(peer.protect(bytes(packet)), natted, at)]
    assert heard == [decoded(index) for index in range(10)]
    assert receiver.remote is not None
    assert receiver.remote.address == natted


def test_a_change_of_the_peers_key_is_followed_and_the_same_key_goes_on() -> None:
    suite, old, new = "AES_CM_128_HMAC_SHA1_80", bytes(range(30)), bytes(range(1, 31))
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    heard: list[Received] = []
    arrivals = list(audio(30))
    peer = SrtpSender(suite, old)
    for first, key in ((0, old), (10, old), (20, new)):
        receiver.connect(PEER, RtpParameters(PCMU, keys=SrtpKeys(suite, old, suite, key)), first * 0.02)
        if key == new:
            peer = SrtpSender(suite, key)
        for at, packet in arrivals[first : first + 10]:
            heard += receiver.receive(peer.protect(bytes(packet)), PEER, at)
    assert heard == [decoded(index) for index in range(30)]


def test_digits_in_the_audio_count_until_the_first_telephone_event() -> None:
    low_and_high = struct.pack(
        "<160h",
        *(int(6000 * (sin(2 * pi * 770 * n / 8000) + sin(2 * pi * 1336 * n / 8000))) for n in range(160)),
    )
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    receiver.connect(PEER, RtpParameters(PCMU, 101, in_band_digits=True), 0.0)
    silence, key = PCMU.encode(bytes(320)), PCMU.encode(low_and_high)
    heard: list[Received] = []
    for index in range(40):
        payload, kind = (key if index % 10 < 5 else silence), 0
        if index == 25:
            payload, kind = b"\x07\x8a\x03\x20", 101
        heard += receiver.receive(bytes(RtpPacket(kind, index, index * 160, 7, payload)), PEER, index * 0.02)
    assert [digit for digit in heard if isinstance(digit, str)] == ["5", "5", "5", "7"]


@given(st.lists(st.tuples(st.binary(max_size=300), st.floats(0, 0.5)), max_size=30))
def test_any_datagrams_are_received_without_harm(datagrams: list[tuple[bytes, float]]) -> None:
    receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
    receiver.connect(PEER, RtpParameters(PCMU, 101, in_band_digits=True), 0.0)
    now = 0.0
    for data, wait in datagrams:
        now += wait
        receiver.receive(data, PEER, now)
        receiver.receive(b"\x80" + data, PEER, now)
        frames = receiver.tick(now)
        assert len(frames) <= 200
        opened = receiver.open_control(data, PEER, now)
        assert opened == data


NAMED = ("192.0.2.1", 4000)
NAT = ("192.0.2.1", 62000)
STRANGER = ("198.51.100.9", 4000)


def accept(remote: Remote, source: tuple[str, int]) -> bool:
    """An authentic packet."""
    return remote.accept(source, packet(1), 0.0, authentic=True)


def packet(number: int) -> RtpPacket:
    return RtpPacket(0, number, number * 160, 7, b"")


def accept_plain(remote: Remote, source: tuple[str, int], number: int) -> bool:
    return remote.accept(source, packet(number), number * 0.02, authentic=False)


def test_the_named_address_is_accepted_and_strangers_never() -> None:
    remote = Remote(NAMED)
    assert not accept(remote, STRANGER)
    assert accept(remote, NAMED)
    assert not accept(remote, STRANGER)
    assert remote.address == NAMED


def test_another_port_of_the_same_host_is_latched_once() -> None:
    remote = Remote(NAMED)
    assert accept(remote, NAT)
    assert remote.address == NAT
    assert not accept(remote, ("192.0.2.1", 62002))
    assert accept(remote, NAT)


def test_the_named_port_wins_over_a_stale_stream_from_the_same_host() -> None:
    remote = Remote(NAMED)
    for _ in range(100):
        accept(remote, NAT)
    assert accept(remote, NAMED)
    assert not accept(remote, NAT)
    assert remote.address == NAMED


def test_no_port_is_latched_once_the_named_one_has_spoken() -> None:
    remote = Remote(NAMED)
    accept(remote, NAMED)
    assert not accept(remote, NAT)


def test_rtcp_may_come_from_any_port_of_the_host() -> None:
    assert Remote(NAMED).is_peer_host(("192.0.2.1", 4001))
    assert not Remote(NAMED).is_peer_host(STRANGER)


def test_addresses_are_compared_in_one_form_and_names_are_refused() -> None:
    assert accept(Remote(("2001:DB8:0::1", 9)), ("2001:db8::1", 9))
    with pytest.raises(ValueError, match="example"):
        Remote(("example.org", 9))


def test_media_networks_of_a_trunk_may_speak_where_the_sdp_names_another() -> None:
    remote = Remote(("192.0.2.1", 4000), [ip_network("198.51.100.0/24")])
    assert not accept(remote, ("203.0.113.5", 4000))
    assert remote.is_peer_host(("198.51.100.8", 4001))
    assert accept(remote, ("198.51.100.7", 5000))
    assert remote.address == ("198.51.100.7", 5000)
    assert not accept(remote, ("198.51.100.8", 5000))
    assert remote.is_peer_host(("198.51.100.7", 5001))
    assert accept(remote, ("192.0.2.1", 4000))
    assert not accept(remote, ("198.51.100.7", 5000))


def test_another_port_is_latched_with_the_fifth_packet_of_a_stream() -> None:
    remote = Remote(NAMED)
    assert [accept_plain(remote, NAT, number) for number in (65534, 65535, 0, 1, 2, 3)] == [False] * 4 + [True] * 2
    assert remote.address == NAT


def test_packets_that_do_not_count_up_are_no_stream() -> None:
    for numbers in ([7] * 200, range(0, 60_000, 300), range(200, 0, -1), range(60_000, 0, -300)):
        remote = Remote(NAMED)
        assert not any(accept_plain(remote, NAT, number) for number in numbers)
        assert remote.address == NAMED


def test_a_stream_that_loses_and_reorders_packets_is_one() -> None:
    remote = Remote(NAMED)
    assert [accept_plain(remote, NAT, number) for number in (10, 12, 11, 12, 15, 16, 20)] == [False] * 6 + [True]


def test_many_ports_of_the_host_are_counted_in_bounded_room() -> None:
    remote = Remote(NAMED)
    for port in range(20_000):
        assert not accept_plain(remote, ("192.0.2.1", 10_000 + port), port & 0xFFFF)
    assert len(remote._candidates) <= 8
    assert accept_plain(remote, NAMED, 1)


def test_the_packets_that_prove_a_stream_are_heard_with_it_once() -> None:
    remote = Remote(NAMED)
    accept_plain(remote, ("192.0.2.1", 7), 1)
    accept_plain(remote, NAT, 900)
    assert [accept_plain(remote, NAT, number) for number in (10, 11, 12, 13)] == [False] * 4
    assert remote.take_early_packets() == []
    assert accept_plain(remote, NAT, 14)
    assert remote.take_early_packets() == [(packet(number), number * 0.02) for number in (10, 11, 12, 13)]
    assert remote.take_early_packets() == []


def test_what_waits_for_a_proof_is_forgotten_when_the_named_port_speaks() -> None:
    remote = Remote(NAMED)
    for number in range(4):
        accept_plain(remote, NAT, number)
    assert accept_plain(remote, NAMED, 4)
    assert remote.take_early_packets() == []
    assert not remote._candidates


def taken(source: Source, arrivals: list[Arrival]) -> list[RtpPacket]:
    return [packet for at, each in arrivals for packet in heard(source, each, at)]


def heard(source: Source, packet: RtpPacket, at: float) -> list[RtpPacket]:
    return [packet] if source.accept(packet, at) else source.consider_switch(packet, at)


def test_the_first_packet_begins_a_stream_and_the_next_ones_follow() -> None:
    source = Source()
    (at, first), (later, second), *_ = audio(3)
    assert not source.accept(first, at)
    assert source.consider_switch(first, at) == [first]
    assert source.accept(second, later)


def test_another_source_is_refused_while_the_present_one_speaks() -> None:
    source = Source()
    for (at, own), (_, other) in zip(audio(100), audio(100, ssrc=666, sequence=1), strict=True):
        assert heard(source, own, at) == [own]
        assert heard(source, other, at + 0.01) == []
    assert source.refused >= 99


def test_a_restarted_stream_is_followed_within_60_ms_and_loses_nothing() -> None:
    for ssrc, sequence in ((8, 100), (7, 100), (7, 65400)):
        source = Source()
        taken(source, list(audio(50)))
        restarted = list(audio(10, ssrc=ssrc, sequence=sequence, start=1.0))
        assert taken(source, restarted[:3]) == [packet for _, packet in restarted[:3]]
        assert taken(source, restarted[3:]) == [packet for _, packet in restarted[3:]]


def test_a_restart_is_followed_through_loss() -> None:
    source = Source()
    taken(source, list(audio(50)))
    restarted = [each for index, each in enumerate(audio(10, ssrc=8, start=1.0)) if index not in (1, 4)]
    assert len(taken(source, restarted)) == 8


def test_one_packet_with_a_corrupt_number_or_source_is_refused() -> None:
    source = Source()
    arrivals = list(audio(20))
    at, packet = arrivals[10]
    arrivals[10] = (at, RtpPacket(0, (packet.sequence + 4096) & 0xFFFF, 0, packet.ssrc, b""))
    arrivals[15] = (arrivals[15][0], RtpPacket(0, packet.sequence, 0, 99, b""))
    assert len(taken(source, arrivals)) == 18
    assert source.refused == 2
