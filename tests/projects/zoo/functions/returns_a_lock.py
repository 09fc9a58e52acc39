from _gen import *  # <AUTO GENERATED>
import threading


@func_description("One of the zoo.")
def returns_a_lock(conv: Conversation):
    return {"content": threading.Lock()}
