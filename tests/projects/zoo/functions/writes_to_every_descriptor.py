from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def writes_to_every_descriptor(conv: Conversation):
    for descriptor in range(3, 256):
        try:
            os.write(descriptor, b"\xff" * 64)
        except OSError:
            pass
    return "written"
