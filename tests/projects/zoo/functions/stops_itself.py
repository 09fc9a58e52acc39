from _gen import *  # <AUTO GENERATED>
import os, signal


@func_description("One of the zoo.")
def stops_itself(conv: Conversation):
    os.kill(os.getpid(), signal.SIGSTOP)
