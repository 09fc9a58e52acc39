from _gen import *  # <AUTO GENERATED>
import signal, time


@func_description("One of the zoo.")
def is_alarmed(conv: Conversation):
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    time.sleep(60)
