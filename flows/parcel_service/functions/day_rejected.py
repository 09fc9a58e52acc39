from _gen import *  # <AUTO GENERATED>


@func_description("The caller does not agree: says no, that is wrong, wants another day.")
def day_rejected(conv: Conversation, flow: Flow):
    conv.state.chosen_day = ""
    flow.goto_step("Delivery day")
    return ""
