from _gen import *  # <AUTO GENERATED>


def end_function(conv: Conversation):
    """Runs once when the call is over, however it ended."""
    conv.write_metric("OUTCOME", conv.state.outcome or "no_request", write_once=True)
    conv.write_metric("TRACKING_ATTEMPTS", conv.state.attempts or 0)
    if conv.current_step:
        conv.write_metric("LAST_STEP", conv.current_step)
