from _gen import *  # <AUTO GENERATED>
from functions.parcels import digits_of, look_up


@func_description("The caller gives a tracking number: an order number, a parcel number, digits.")
@func_parameter("tracking_number", "The digits of the tracking number as the caller gave them, for example 12345")
@func_latency_control(
    delay_before_responses_start=0.5,
    silence_after_each_response=1,
    delay_responses=[
        ("One moment, I am looking for your parcel.", 2),
        ("Nearly there.", 1),
    ],
)
def tracking_number_given(conv: Conversation, flow: Flow, tracking_number: str):
    conv.state.attempts = (conv.state.attempts or 0) + 1
    digits = digits_of(tracking_number)
    if len(digits) != 5:
        flow.goto_step("Tracking number")
        return {"utterance": f"A tracking number has five digits, and I heard {len(digits)}. Please give me all five."}
    conv.state.tracking_number = digits
    conv.state.parcel = look_up(digits)
    flow.goto_step("route_by_status")
    return ""
