"""The contract between a call and the connection of one party: `CallLeg`, its events and audio, and bridges.

Legs over SIP are in `callagent.legs.sip`, legs over a carrier's media stream in `callagent.carriers`.
"""

from callagent.legs.bridge import Bridge, Dial
from callagent.legs.leg import (
    CallerHungUp,
    CallLeg,
    DigitPressed,
    FrameSink,
    FrameSource,
    LegEvent,
    LegEvents,
    LegFailed,
    LegGone,
    Media,
    PartiesJoined,
    SwitchedMedia,
    TooManyCalls,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
    WordsWritten,
)

__all__ = [
    "Bridge",
    "CallLeg",
    "CallerHungUp",
    "Dial",
    "DigitPressed",
    "FrameSink",
    "FrameSource",
    "LegEvent",
    "LegEvents",
    "LegFailed",
    "LegGone",
    "Media",
    "PartiesJoined",
    "SwitchedMedia",
    "TooManyCalls",
    "TransferOutcome",
    "TransferStatus",
    "TransferTarget",
    "WordsWritten",
]
