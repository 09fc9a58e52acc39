from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def swallows_everything(conv: Conversation):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
