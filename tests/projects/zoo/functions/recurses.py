from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def recurses(conv: Conversation):
    return recurses(conv)
