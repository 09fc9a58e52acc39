from _gen import *  # <AUTO GENERATED>
import time


@func_description("One of the zoo.")
def sleeps_for_ever(conv: Conversation):
    conv.state.value = "lost"
    time.sleep(1e6)
