from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def asks_for_an_answer(conv: Conversation):
    return conv.utils.prompt_llm("how are you?")
