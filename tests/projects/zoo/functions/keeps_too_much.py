from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def keeps_too_much(conv: Conversation):
    conv.state.big = "x" * 6_000_000
    return "kept"
