from _gen import *  # <AUTO GENERATED>

MAX_ATTEMPTS = 3


def route_by_status(conv: Conversation, flow: Flow):
    """What the look-up found decides where the conversation goes on."""
    number = conv.state.tracking_number
    parcel = conv.state.parcel
    if not parcel:
        return _not_found(conv, flow, number)
    conv.state.outcome = "status_given"
    conv.write_metric("PARCEL_STATUS", parcel["status"])
    if parcel["status"] == "missed":
        flow.goto_step("Delivery day")
        conv.state.parcel_text = f"Parcel {number} is at our {conv.variant.depot}. {parcel['text']}."
        return {"utterance": f"{conv.state.parcel_text} Shall I book a new delivery day?"}
    flow.goto_step("Anything else")
    conv.state.parcel_text = f"I found parcel {number}. {parcel['text']}."
    return {"utterance": f"{conv.state.parcel_text} Is there anything else?"}


def _not_found(conv: Conversation, flow: Flow, number: str):
    conv.write_metric("PARCEL_STATUS", "unknown")
    if conv.state.attempts >= MAX_ATTEMPTS:
        conv.state.outcome = "transferred"
        conv.state.reason = "parcel not found"
        return conv.call_handoff("support", "parcel_not_found", "I cannot find your parcel. A colleague will help you.")
    flow.goto_step("Tracking number")
    return {"utterance": f"I cannot find parcel {number}. Please give me the number once more."}
