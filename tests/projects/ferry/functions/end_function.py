from _gen import *  # <AUTO GENERATED>


def end_function(conv: Conversation):
    conv.write_metric("OUTCOME", "booked" if conv.state.booked else "open", write_once=True)
    if "X-Survey" in conv.end_headers:
        conv.write_metric("SURVEY", conv.end_headers["X-Survey"])
    conv.write_metric("ENDED_IN", f"{conv.current_flow}/{conv.current_step}")
