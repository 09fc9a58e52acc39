from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def returns_itself_inside(conv: Conversation):
    value = []
    value.append(value)
    return {"content": value}
