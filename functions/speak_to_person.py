from _gen import *  # <AUTO GENERATED>


@func_description("The caller asks to speak to a person: a human, an agent, somebody real.")
def speak_to_person(conv: Conversation):
    conv.state.outcome = "transferred"
    conv.state.reason = "caller asked for a person"
    return conv.call_handoff(
        destination="support",
        reason="caller_request",
        utterance="I will put you through to a colleague. One moment.",
    )
