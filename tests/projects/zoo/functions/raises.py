from _gen import *  # <AUTO GENERATED>


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@func_description("One of the zoo.")
def raises(conv: Conversation):
    conv.state.reached = True
    raise Unprintable
