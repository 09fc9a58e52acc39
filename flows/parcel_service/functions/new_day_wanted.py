from _gen import *  # <AUTO GENERATED>


@func_description("The caller missed a delivery or wants another delivery day: book, change, move, rearrange.")
def new_day_wanted(conv: Conversation, flow: Flow):
    conv.write_metric("REQUEST", "new_day")
    known = conv.state.parcel and conv.state.parcel["status"] != "delivered"
    flow.goto_step("Delivery day" if known else "Tracking number")
    return ""
