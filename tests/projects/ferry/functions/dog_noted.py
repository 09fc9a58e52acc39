from _gen import *  # <AUTO GENERATED>


@func_description("The caller brings a dog.")
def dog_noted(conv: Conversation):
    conv.state.dog = True
    return "The dog is noted."
