from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def keeps_a_lambda(conv: Conversation):
    conv.state.bad = lambda: None
    conv.state.good = 1
    return "kept"
