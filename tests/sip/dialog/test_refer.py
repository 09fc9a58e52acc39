"""Blind transfers: the server refers the phone, which does what peers do."""

from __future__ import annotations

import itertools

import pytest

from callagent.sip import (
    CallEnded,
    CallReplaced,
    EndCause,
    Event,
    Request,
    Response,
    TransferProgressed,
    TransferRequested,
    TransferState,
    Uri,
    parse_message,
)
from callagent.sip.dialog.call import SipCall, send_digit
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.refer import TRANSFER_TABLE, TransferInput
from callagent.sip.message.headers import unescape
from tests.sip.pair import SERVER, Pair, settings
from tests.sip.test_user_agent import in_dialog

TARGET = Uri.parse("sip:desk@192.0.2.9")


def referred(pair: Pair, *reports: int) -> tuple[SipCall, SipCall]:
    """An established call whose server has sent REFER; the phone reports these statuses."""
    ours, theirs = pair.establish()

    def on_event(event: Event) -> None:
        if isinstance(event, TransferRequested):
            for status in reports:
                event.call.report_transfer(status, pair.now)

    pair.phone.on_event = on_event
    theirs.refer(TARGET, pair.now, {"X-Case": "7"})
    return ours, theirs


def outcomes(pair: Pair) -> list[tuple[TransferState, int]]:
    return [(event.state, event.status) for event in pair.server.of(TransferProgressed)]


def refer_response(pair: Pair, status: str) -> bytes:
    """What the phone would answer to the REFER that is on its way."""
    ((data, _),) = pair.server.core.messages_to_send()
    head = data.split(b"\r\n", 1)[1]
    return f"SIP/2.0 {status}\r\n".encode() + head


def notify(ours: SipCall, cseq: int, state: str, fragment: bytes) -> bytes:
    request = in_dialog(ours, "NOTIFY", f"z9hG4bKn{cseq}", cseq, Event="refer", Subscription_State=state)
    request.headers.set("Content-Type", "message/sipfrag;version=2.0")
    request.body = fragment
    return bytes(request)


def test_success_is_told_and_the_call_is_ours_to_end() -> None:
    pair = Pair()
    _, theirs = referred(pair, 180, 200)
    pair.run(2.0)
    assert outcomes(pair)[-1] == (TransferState.SUCCEEDED, 200)
    (refer,) = pair.phone.requests("REFER")
    assert refer.headers.get("Refer-To") == "<sip:desk@192.0.2.9>"
    assert refer.headers.get("Referred-By") == "<sip:agent@192.0.2.2>"
    assert refer.headers.get("X-Case") == "7"
    assert theirs.is_established
    theirs.hang_up(pair.now)
    pair.run()
    assert pair.idle()


@pytest.mark.parametrize("status", [486, 503, 404, 603, 302])
def test_failure_of_the_target_leaves_the_call_to_us(status: int) -> None:
    pair = Pair()
    _, theirs = referred(pair, status)
    pair.run(2.0)
    assert outcomes(pair)[-1] == (TransferState.FAILED, status)
    assert theirs.is_established


def test_a_second_try_may_follow_a_failure_but_not_overtake_it() -> None:
    pair = Pair()
    _, theirs = referred(pair)
    with pytest.raises(ValueError, match="under way"):
        theirs.refer(TARGET, pair.now)
    pair.run(70.0)
    theirs.refer(TARGET, pair.now)
    pair.run(1.0)
    assert outcomes(pair)[-1][0] is TransferState.TRYING or 491 in pair.server.statuses("REFER")


@pytest.mark.parametrize("refusal", ["403 Forbidden", "405 Method Not Allowed", "603 Decline"])
def test_a_refused_refer_is_told(refusal: str) -> None:
    pair = Pair()
    _, theirs = pair.establish()
    theirs.refer(TARGET, pair.now)
    pair.send(refer_response(pair, refusal))
    pair.run(1.0)
    assert outcomes(pair) == [(TransferState.REFUSED, int(refusal[:3]))]
    assert theirs.is_established


def test_a_phone_that_takes_no_transfers_says_so() -> None:
    pair = Pair(phone=settings())
    referred(pair, 200)
    pair.run(1.0)
    assert outcomes(pair) == [(TransferState.REFUSED, 405)]


def test_a_refer_that_nobody_answers_fails() -> None:
    pair = Pair()
    pair.establish()
    pair.lose = lambda number, data: True
    pair.server.calls[0].refer(TARGET, pair.now)
    pair.run(33.0)
    assert outcomes(pair) == [(TransferState.FAILED, 408)]


def test_without_any_notify_the_transfer_has_no_answer() -> None:
    pair = Pair(lambda number, data: data.startswith(b"NOTIFY"))
    _, theirs = referred(pair)
    pair.run(9.0)
    assert outcomes(pair) == [(TransferState.ACCEPTED, 202)]
    pair.run(1.5)
    assert outcomes(pair)[-1][0] is TransferState.NO_ANSWER
    assert theirs.is_established


def test_a_target_that_rings_for_ever_is_given_up() -> None:
    pair = Pair()
    _, theirs = referred(pair, 180)
    pair.run(29.5)
    assert outcomes(pair)[-1][0] is TransferState.TRYING
    pair.run(1.0)
    assert outcomes(pair)[-1][0] is TransferState.NO_ANSWER
    assert theirs.is_established


def test_a_caller_is_left_alone_for_30_seconds_at_most_however_slow_each_step_is() -> None:
    pair = Pair(lambda number, data: data.startswith(b"NOTIFY"))
    ours, theirs = referred(pair)
    pair.run(9.0)
    pair.send(notify(ours, 50, "active;expires=60", b"SIP/2.0 100 Trying\r\n"))
    pair.run(20.5)
    assert outcomes(pair)[-1][0] is TransferState.TRYING
    pair.run(1.0)
    assert outcomes(pair)[-1] == (TransferState.NO_ANSWER, 408)
    assert theirs.is_established


def test_the_late_outcome_of_one_refer_is_not_the_next_one_s() -> None:
    pair = Pair(lambda number, data: data.startswith(b"NOTIFY"))
    ours, theirs = referred(pair, 486)
    pair.run(11.0)
    theirs.refer(TARGET, pair.now)
    pair.phone.on_event = lambda event: None
    pair.run(0.2)
    first, second = (request.cseq.number for request in pair.phone.requests("REFER"))
    for cseq, number, status in ((50, first, b"486 Busy Here"), (51, second, b"200 OK")):
        request = parse_message(notify(ours, cseq, "terminated", b"SIP/2.0 " + status))
        request.headers.set("Event", f"refer;id={number}")
        pair.send(bytes(request))
    pair.run(0.2)
    assert pair.phone.statuses("NOTIFY") == [200, 200]
    assert outcomes(pair)[-1] == (TransferState.SUCCEEDED, 200)
    assert TransferState.FAILED not in [state for state, _ in outcomes(pair)]


def test_a_subscription_that_ends_without_an_outcome_is_a_failure() -> None:
    pair = Pair(lambda number, data: data.startswith(b"NOTIFY"))
    ours, theirs = referred(pair)
    pair.run(1.0)
    pair.send(notify(ours, 50, "terminated;reason=timeout", b"SIP/2.0 100 Trying\r\n"))
    pair.run(1.0)
    assert outcomes(pair)[-1][0] is TransferState.FAILED
    assert theirs.is_established


def test_a_notify_that_overtakes_the_202_counts() -> None:
    pair = Pair(lambda number, data: data.startswith(b"SIP/2.0 202"))
    ours, _ = referred(pair, 200)
    pair.run(0.2)
    assert outcomes(pair)[-1] == (TransferState.SUCCEEDED, 200)
    assert ours.is_established


def test_a_late_notify_is_answered_and_changes_nothing() -> None:
    pair = Pair()
    ours, _ = referred(pair, 486)
    pair.run(1.0)
    before = outcomes(pair)
    pair.send(notify(ours, 50, "terminated", b"SIP/2.0 200 OK\r\n"))
    pair.run(1.0)
    assert pair.phone.statuses("NOTIFY")[-1] == 200
    assert outcomes(pair) == before


def test_a_notify_for_nothing_is_unknown() -> None:
    pair = Pair()
    ours, _ = pair.establish()
    pair.send(notify(ours, 50, "terminated", b"SIP/2.0 200 OK\r\n"))
    pair.run(1.0)
    assert pair.phone.statuses("NOTIFY") == [481]


def test_a_caller_who_hangs_up_meanwhile_ends_the_call() -> None:
    pair = Pair()
    ours, _ = referred(pair)
    pair.run(1.0)
    ours.hang_up(pair.now)
    pair.run()
    assert len(pair.server.of(CallEnded)) == 1
    assert pair.idle()


def from_server(theirs: SipCall, branch: str, *refer_to: str) -> bytes:
    assert theirs.dialog is not None
    request: Request = theirs.dialog.request("REFER")
    request.headers.insert_first("Via", f"SIP/2.0/UDP {SERVER[0]}:{SERVER[1]};branch={branch};rport")
    for value in refer_to:
        request.headers.add("Refer-To", value)
    return bytes(request)


@pytest.mark.parametrize("refer_to", [(), ("<sip:a@b>", "<sip:c@d>"), ("<broken",)])
def test_a_refer_without_one_target_is_bad(refer_to: tuple[str, ...]) -> None:
    pair = Pair()
    _, theirs = pair.establish()
    pair.send(from_server(theirs, "z9hG4bKr", *refer_to), to="phone")
    pair.run(1.0)
    assert pair.server.statuses("REFER") == [400]
    assert not pair.phone.of(TransferRequested)


def test_a_second_refer_has_to_wait() -> None:
    pair = Pair()
    _, theirs = pair.establish()
    for branch in ("z9hG4bKr1", "z9hG4bKr2"):
        pair.send(from_server(theirs, branch, "<sip:desk@192.0.2.9>"), to="phone")
    pair.run(1.0)
    assert pair.server.statuses("REFER") == [202, 491]
    assert len(pair.phone.of(TransferRequested)) == 1


def test_final_states_are_final_and_all_others_end_by_themselves() -> None:
    for state, event in itertools.product(TransferState, TransferInput):
        if state.is_final:
            assert (state, event) not in TRANSFER_TABLE
    for state in (state for state in TransferState if not state.is_final):
        ends = (TransferInput.TIMEOUT, TransferInput.NO_RESPONSE)
        assert any(TRANSFER_TABLE.get((state, event), state).is_final for event in ends)


# Another call in this one's place (RFC 3891), silent transfers (RFC 4488), and peers that know nothing of us


def replacing(pair: Pair, dialog: Dialog, **changes: str) -> SipCall:
    """The phone calls again, in the place of the call whose dialog it is, as the server sees the tags."""
    tags = {"to-tag": dialog.remote.tag, "from-tag": dialog.local.tag}
    tags |= {name.replace("_", "-"): text for name, text in changes.items()}
    value = ";".join((dialog.call_id, *(f"{name}={text}" for name, text in tags.items())))
    return pair.dial(headers={"Replaces": value, "Require": "replaces"})


def test_a_call_takes_the_place_of_another() -> None:
    pair = Pair()
    ours, theirs = pair.establish()

    def on_event(event: Event) -> None:
        if isinstance(event, CallReplaced):
            event.by.answer(pair.answer_to(event.by), pair.now)
            event.call.hang_up(pair.now)

    pair.server.on_event = on_event
    assert ours.dialog is not None
    new = replacing(pair, ours.dialog)
    pair.run(1.0)
    assert new.is_established
    assert not ours.is_established
    assert [event.call for event in pair.server.of(CallReplaced)] == [theirs]
    new.hang_up(pair.now)
    pair.run()
    assert pair.idle()


def test_a_call_that_nobody_knows_cannot_be_replaced() -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    assert ours.dialog is not None
    for changes, status in (({"to_tag": "x"}, 481), ({"from_tag": "x"}, 481)):
        replacing(pair, ours.dialog, **changes)
        pair.run(1.0)
        assert pair.phone.statuses("INVITE")[-1] == status
    pair.dial(headers={"Replaces": "nonsense"})
    pair.run(1.0)
    assert pair.phone.statuses("INVITE")[-1] == 400
    assert theirs.is_established
    assert not pair.server.of(CallReplaced)


def test_an_attended_transfer_names_the_call_to_take_over() -> None:
    pair = Pair(server=settings(accepts_transfers=True))
    first, _ = pair.establish()
    second, _ = pair.establish()
    first.refer(Uri.parse("sip:desk@192.0.2.2"), pair.now, to=second)
    pair.run(1.0)
    (event,) = pair.server.of(TransferRequested)
    assert second.dialog is not None
    told = unescape(event.target.headers or "")
    assert told.startswith(f"Replaces={second.dialog.call_id};to-tag={second.dialog.remote.tag};from-tag=")


def test_a_peer_that_does_not_want_to_be_told_is_not_told() -> None:
    pair = Pair(server=settings(accepts_transfers=True))
    ours, theirs = pair.establish()
    ours.refer(Uri.parse("sip:desk@192.0.2.2"), pair.now, {"Refer-Sub": "false"})
    pair.run(1.0)
    theirs.report_transfer(200, pair.now)
    pair.run(1.0)
    (accepted,) = [m for m in pair.phone.heard if isinstance(m, Response) and m.status == 202]
    assert accepted.headers.get("Refer-Sub") == "false"
    assert not pair.phone.requests("NOTIFY")


@pytest.mark.parametrize("way", ["refer", "info"])
def test_a_peer_that_does_not_know_the_call_any_more_ends_it(way: str) -> None:
    pair = Pair()
    ours, theirs = pair.establish()
    assert ours.dialog is not None
    pair.phone.core._core.dialogs.clear()
    if way == "refer":
        theirs.refer(Uri.parse("sip:desk@192.0.2.9"), pair.now)
    else:
        send_digit(theirs, "5", pair.now)
    pair.run(1.0)
    (event,) = pair.server.of(CallEnded)
    assert event.cause is EndCause.LOST
