from _gen import *  # <AUTO GENERATED>
import signal, time


@func_description("One of the zoo.")
def ignores_signals(conv: Conversation):
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:
            pass
    while True:
        time.sleep(1)
