from _gen import *  # <AUTO GENERATED>


def start_function(conv: Conversation):
    conv.state.crossings = 0
    conv.write_metric("CALL_STARTED", conv.sip_headers.get("X-Line", "none"))
