from _gen import *  # <AUTO GENERATED>
import os, signal, time


@func_description("One of the zoo.")
def kills_its_parent(conv: Conversation):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
