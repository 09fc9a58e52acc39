from _gen import *  # <AUTO GENERATED>
import ctypes


@func_description("One of the zoo.")
def segfaults(conv: Conversation):
    ctypes.string_at(0)
