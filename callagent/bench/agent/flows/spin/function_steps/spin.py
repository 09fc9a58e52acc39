from _gen import *  # <AUTO GENERATED>
import time


@func_latency_control(
    delay_before_responses_start=0,
    silence_after_each_response=1,
    delay_responses=[("One moment please.", 1)],
)
def spin(conv: Conversation, flow: Flow):
    until = time.monotonic() + 600
    while time.monotonic() < until:
        pass
    conv.exit_flow()
