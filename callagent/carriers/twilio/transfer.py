"""What a carrier is told to do with a caller who is to be put through."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from callagent.call_info import CallInfo
from callagent.carriers.twilio.twiml import DialTarget, conference, dial, refer
from callagent.legs import TransferTarget

CONFIRM_SECONDS = 30.0
"""For the words and the key of a person who has to take the call."""


@dataclass(frozen=True, slots=True)
class CarrierUrls:
    """Where the carrier reaches us."""

    report: str
    """Told how a transfer goes."""
    greeting: str = ""
    """Asked what the person hears who was dialled."""


def instructions(target: TransferTarget, info: CallInfo, urls: CarrierUrls, *, over_sip: bool) -> str:
    """TwiML. `refer` needs a caller and a target on SIP, else the carrier dials. Raises `ValueError`."""
    greeting = urls.greeting if target.whisper or target.confirm else ""
    wanted = DialTarget(target.uri, target.headers, target.caller, greeting, confirmed=bool(target.confirm))
    if target.method == "refer" and over_sip and ":" in target.uri:
        return refer(wanted, urls.report)
    if target.method == "attended":
        # What cannot be called is told before the caller is put anywhere.
        wanted.element(urls.report)
        return conference(room_of(info), urls.report)
    return dial(wanted, urls.report, ceil(target.ring_seconds))


def room_of(info: CallInfo) -> str:
    return f"callagent-{info.call_id}"


def report_seconds(target: TransferTarget) -> float:
    """After so long without a word of the carrier the transfer is taken as it was asked for."""
    return target.ring_seconds + 10.0 + (CONFIRM_SECONDS if target.confirm else 0.0)
