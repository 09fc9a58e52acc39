from _gen import *  # <AUTO GENERATED>


@func_description("The caller wants to talk to a person.")
@func_parameter("reason", "Why, in one word")
def person_wanted(conv: Conversation, reason: str):
    return conv.call_handoff("office", reason=reason or "asked", utterance="I am putting you through.")
