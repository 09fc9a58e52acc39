from _gen import *  # <AUTO GENERATED>


def end_function(conv: Conversation):
    conv.write_metric("ENDED", conv.state.sacks)
