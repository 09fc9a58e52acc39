from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def recall(conv: Conversation):
    return str(conv.state.value)
