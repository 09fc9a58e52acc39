from _gen import *  # <AUTO GENERATED>
import builtins, json, os, pickle, time


@func_description("One of the zoo.")
def patches_everything(conv: Conversation):
    time.sleep = time.monotonic = json.dumps = os.getpid = None
    builtins.print = builtins.len = None
    return "patched"
