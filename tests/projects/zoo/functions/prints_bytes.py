from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def prints_bytes(conv: Conversation):
    os.write(1, b"\xff\xfe no text\n")
    os.write(2, b"no end of line")
    return "printed"
