from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def eats_memory_slowly(conv: Conversation):
    hoard = []
    while True:
        hoard.append(bytearray(10**6))
