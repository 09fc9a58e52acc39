from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def eats_memory(conv: Conversation):
    return str(len(bytearray(10**10)))
