def before_agent_callback(callback_context: CallbackContext) -> Optional[Content]:
    callback_context.variables["late"] = False
    callback_context.variables["seen_by"] = callback_context.agent_name
    return None
