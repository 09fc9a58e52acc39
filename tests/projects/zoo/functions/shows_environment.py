from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def shows_environment(conv: Conversation):
    return {"content": "", "environment": dict(os.environ), "descriptors": os.listdir("/proc/self/fd")}
