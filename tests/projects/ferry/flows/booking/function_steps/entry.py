from _gen import *  # <AUTO GENERATED>


def entry(conv: Conversation, flow: Flow):
    flow.goto_step("Collect details")
    return "Tell the caller that you need two details."
