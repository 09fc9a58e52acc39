from _gen import *  # <AUTO GENERATED>


@func_description("Grind without an end.")
@func_latency_control(
    delay_before_responses_start=0,
    silence_after_each_response=1,
    delay_responses=[("The stones are turning.", 1)],
)
def grind_for_ever(conv: Conversation):
    conv.state.sacks += 100
    while True:
        pass
