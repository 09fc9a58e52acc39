from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def computes_in_c(conv: Conversation):
    return str(10 ** 10**8)[:10]
