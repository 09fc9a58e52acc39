from _gen import *  # <AUTO GENERATED>


@func_description("The caller does not have the number, does not know it, cannot find it.")
def number_unavailable(conv: Conversation, flow: Flow):
    conv.write_metric("NUMBER_UNAVAILABLE", True, write_once=True)
    return conv.functions.speak_to_person()
