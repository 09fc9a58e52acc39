from _gen import *  # <AUTO GENERATED>
import tempfile


@func_description("One of the zoo.")
def fills_the_disk(conv: Conversation):
    with tempfile.TemporaryFile() as file:
        for _ in range(1000):
            file.write(b"x" * 10**6)
