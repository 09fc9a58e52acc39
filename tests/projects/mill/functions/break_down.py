from _gen import *  # <AUTO GENERATED>
import os


@func_description("Break the mill.")
def break_down(conv: Conversation):
    conv.state.sacks += 100
    os._exit(7)
