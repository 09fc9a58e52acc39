from _gen import *  # <AUTO GENERATED>


@func_description("The caller agrees: says yes, that is right, confirms the day.")
def day_confirmed(conv: Conversation, flow: Flow):
    conv.state.outcome = "booked"
    conv.write_metric("BOOKED_DAY", str(conv.state.delivery_date))
    flow.goto_step("Anything else")
    return {"utterance": f"Your delivery is booked for {conv.state.chosen_day}. Is there anything else?"}
