from _gen import *  # <AUTO GENERATED>


@func_description("The caller says goodbye.")
def goodbye(conv: Conversation):
    return {"utterance": "Have a good crossing. Goodbye.", "hangup": True}
