from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def logs_a_lot(conv: Conversation):
    for _ in range(10_000):
        conv.log.info("x" * 1000, odd=object())
    return "logged"
