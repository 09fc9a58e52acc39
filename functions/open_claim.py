from _gen import *  # <AUTO GENERATED>


@func_description("Something never arrived, is lost or damaged, or the caller wants a refund: money back, a complaint.")
def open_claim(conv: Conversation):
    conv.state.outcome = "claim"
    return {
        "utterance": "I am sorry about that. Our claims desk will help you. One moment.",
        "handoff": {
            "type": "claims",
            "reason": "parcel_missing",
            "bye": {"sip_headers": {"X-Queue": "claims", "X-Tracking-Number": conv.state.tracking_number or "unknown"}},
        },
    }
