from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def forks_and_returns(conv: Conversation):
    os.fork()
    return "twice"
