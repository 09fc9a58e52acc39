from _gen import *  # <AUTO GENERATED>


def start_function(conv: Conversation):
    conv.state.sacks = 0
