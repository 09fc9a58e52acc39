import time

from _gen import *  # <AUTO GENERATED>


@func_description("The caller confirms.")
@func_latency_control(
    delay_before_responses_start=1,
    silence_after_each_response=1,
    delay_responses=[("Booking for $party.", 2), ("Nearly there.", 2)],
)
def confirmed(conv: Conversation, flow: Flow):
    time.sleep(2.5)
    conv.state.booked = True
    conv.write_metric("BOOKED", conv.state.party)
    conv.exit_flow()
    return {"utterance": f"Booked for {conv.state.party}."}
