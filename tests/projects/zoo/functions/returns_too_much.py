from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def returns_too_much(conv: Conversation):
    return "x" * 10**8
