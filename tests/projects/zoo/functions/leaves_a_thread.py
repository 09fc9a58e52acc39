from _gen import *  # <AUTO GENERATED>
import threading


@func_description("One of the zoo.")
def leaves_a_thread(conv: Conversation):
    def for_ever():
        while True:
            pass
    
    
    threading.Thread(target=for_ever, daemon=True).start()
    return "ok"
