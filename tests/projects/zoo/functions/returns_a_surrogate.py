from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def returns_a_surrogate(conv: Conversation):
    return "half a character: \ud83d"
