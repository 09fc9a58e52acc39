from _gen import *  # <AUTO GENERATED>
import sys


@func_description("One of the zoo.")
def exits_softly(conv: Conversation):
    sys.exit("enough")
