from _gen import *  # <AUTO GENERATED>


@func_description("The caller says that it is wrong.")
def rejected(conv: Conversation, flow: Flow):
    flow.goto_step("Collect details")
    return {"content": "Ask what is wrong."}
