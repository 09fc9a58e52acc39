from _gen import *  # <AUTO GENERATED>
import time


@func_description("Sleep past the deadline.")
@func_latency_control(
    delay_before_responses_start=0,
    silence_after_each_response=1,
    delay_responses=[("The stones are turning.", 1)],
)
def oversleep(conv: Conversation):
    conv.state.sacks += 100
    time.sleep(3600)
