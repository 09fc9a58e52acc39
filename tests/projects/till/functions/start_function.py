from _gen import *  # <AUTO GENERATED>


def start_function(conv: Conversation):
    listen = {"channel": "DTMF", "dtmf": {"num_digits": 16, "is_pii": True, "early_listening": True}}
    return {"utterance": "Please key in your card.", "listen": listen}
