from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def prints_a_lot(conv: Conversation):
    for _ in range(100_000):
        print("x" * 1000)
    return "printed"
