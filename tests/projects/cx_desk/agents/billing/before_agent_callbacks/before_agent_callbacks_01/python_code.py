def before_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
    callback_context.variables["late"] = False
    callback_context.variables["seen_by"] = callback_context.agent_name
    callback_context.variables["PHONE_GATEWAY_TRANSFER"] = {"phone_number": "+15550199"}
    callback_context.variables["LIVE_AGENT_HANDOFF"] = {
        "sip-refer": True,
        "x-headers": {"X-Topic": "bill"},
        "uui-headers": [{"key": "k1", "value": "v1"}, {"k2": "v2"}],
    }
    return None
