from _gen import *  # <AUTO GENERATED>


@func_description("Weigh one sack.")
def weigh(conv: Conversation):
    conv.state.sacks += 1
    return f"{conv.state.sacks} sacks so far."
