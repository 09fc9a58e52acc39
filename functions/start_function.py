from _gen import *  # <AUTO GENERATED>


def start_function(conv: Conversation):
    """Runs while the phone rings: who is calling, for which region, and where the conversation begins."""
    conv.state.today = conv.clock.today().strftime("%A, %d %B %Y")
    conv.state.caller = conv.caller_number or ""
    conv.state.outcome = "no_request"
    conv.state.attempts = 0

    headers = {name.lower(): value for name, value in conv.sip_headers.items()}
    region = headers.get("x-region", "")
    if region in conv.variants:
        conv.set_variant(region)
    conv.write_metric("CALLER_WITHHELD", not conv.caller_number)
    conv.write_metric("REGION", region or "none")

    conv.goto_flow("Parcel service")
    return str()
