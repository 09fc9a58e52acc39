from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def exits_hard(conv: Conversation):
    print("last words")
    os._exit(3)
