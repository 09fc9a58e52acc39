from _gen import *  # <AUTO GENERATED>


@func_description("The caller wants to book a crossing.")
def booking_wanted(conv: Conversation):
    conv.goto_flow("Booking")
