from _gen import *  # <AUTO GENERATED>
import threading


@func_description("One of the zoo.")
def waits_for_a_thread(conv: Conversation):
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    thread.join()
