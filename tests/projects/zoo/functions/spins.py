from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def spins(conv: Conversation):
    while True:
        pass
