from _gen import *  # <AUTO GENERATED>


@func_description("The caller says no, nothing else, that is everything.")
def nothing_else(conv: Conversation, flow: Flow):
    return conv.functions.say_goodbye()
