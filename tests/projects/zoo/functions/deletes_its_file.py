from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def deletes_its_file(conv: Conversation):
    os.remove(__file__)
    return "gone"
