from _gen import *  # <AUTO GENERATED>
import time


@func_description("Look something up; takes a while.")
@func_latency_control(
    delay_before_responses_start=0,
    silence_after_each_response=1,
    delay_responses=[("One moment please.", 1)],
)
def slow_look_up(conv: Conversation):
    conv.write_metric("STARTED", time.monotonic())
    time.sleep(1.5)
    return "It is done."
