from _gen import *  # <AUTO GENERATED>


@func_description("The caller wants to speak to the miller.")
def person_wanted(conv: Conversation):
    return conv.call_handoff("miller", reason="asked for", utterance="I will fetch the miller.")
