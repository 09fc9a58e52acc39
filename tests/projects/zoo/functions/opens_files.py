from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def opens_files(conv: Conversation):
    files = []
    while True:
        files.append(open(__file__))
