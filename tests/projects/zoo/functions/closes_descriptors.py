from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def closes_descriptors(conv: Conversation):
    os.closerange(0, 256)
    return "closed"
