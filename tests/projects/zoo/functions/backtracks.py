from _gen import *  # <AUTO GENERATED>
import re


@func_description("One of the zoo.")
def backtracks(conv: Conversation):
    return str(re.match(r"(a+)+$", "a" * 64 + "b"))
