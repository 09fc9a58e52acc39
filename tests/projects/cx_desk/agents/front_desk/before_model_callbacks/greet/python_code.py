def before_model_callback(callback_context: CallbackContext, llm_request: LlmRequest) -> Optional[LlmResponse]:
    said = "".join(part.text or "" for part in callback_context.get_last_user_input())
    if said.startswith("<event>session start</event>"):
        return LlmResponse.from_parts([Part.from_text("City utilities, hello.")])
    if said == "A person, please.":
        set_variable("LIVE_AGENT_HANDOFF", {"x-headers": {"X-Topic": "bill"}, "uui-headers": [{"k1": "v1"}]})
        return LlmResponse.from_parts(
            [Part.from_text("I put you through."), Part.from_end_session(reason="person", escalated=True)]
        )
    if said == "Send me to the sister.":
        return LlmResponse.from_parts([Part.from_agent_transfer("Billing")])
    if said == "My account.":
        return LlmResponse.from_parts(
            [Part.from_customized_response(content="Enter your number.", disable_barge_in=True, enable_dtmf=True)]
        )
    return None
