from _gen import *  # <AUTO GENERATED>
import time

LOOK_UP_SECONDS = 3.0

# It stands for the carrier's own system, which is slow and gives the same answer to the same number.
PARCELS = {
    "84276": {"status": "missed", "text": "Nobody was in when we called"},
    "55014": {"status": "on_its_way", "text": "It left our sorting centre this morning and arrives tomorrow"},
    "10023": {"status": "delivered", "text": "It was handed over at your front desk"},
}


def digits_of(spoken: str) -> str:
    return "".join(character for character in spoken if character.isdigit())


def look_up(tracking_number: str) -> dict:
    """Return what is known of a parcel; nothing for a number that we do not have."""
    time.sleep(LOOK_UP_SECONDS)
    return dict(PARCELS.get(tracking_number, {}))


@func_description("Helpers for the look-up of parcels; not called by the model.")
def parcels(conv: Conversation):
    return "helpers for the look-up of parcels"
