from _gen import *  # <AUTO GENERATED>


@func_description("Keeps a value for recall.")
@func_parameter("value", "What to keep")
def remember(conv: Conversation, value: str):
    conv.state.value = value
    conv.state.list = [value]
