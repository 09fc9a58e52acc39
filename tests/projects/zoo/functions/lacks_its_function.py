from _gen import *  # <AUTO GENERATED>


def another_name(conv: Conversation):
    return "never"
