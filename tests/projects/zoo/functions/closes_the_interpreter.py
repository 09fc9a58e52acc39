from _gen import *  # <AUTO GENERATED>
import gc, sys


@func_description("One of the zoo.")
def closes_the_interpreter(conv: Conversation):
    for name in list(sys.modules):
        if name.startswith("callagent"):
            del sys.modules[name]
    return "cleared"
