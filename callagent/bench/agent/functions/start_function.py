from _gen import *  # <AUTO GENERATED>


def start_function(conv: Conversation):
    """Whoever calls the number `spin` gets the function that never ends."""
    if conv.callee_number != "spin":
        return str()
    conv.goto_flow("Spin")
    return {"utterance": "", "listen": {"asr": {"timeout": 0.1}}}
