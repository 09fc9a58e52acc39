from _gen import *  # <AUTO GENERATED>


@func_description("The caller wants to know where a parcel is: check the status of an order, track or find a package.")
def parcel_status_wanted(conv: Conversation, flow: Flow):
    conv.write_metric("REQUEST", "status")
    flow.goto_step("Tracking number")
    return ""
