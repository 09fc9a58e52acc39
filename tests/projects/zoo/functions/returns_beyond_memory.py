from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def returns_beyond_memory(conv: Conversation):
    return "x" * 10**9
