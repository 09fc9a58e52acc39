from _gen import *  # <AUTO GENERATED>
import subprocess


@func_description("One of the zoo.")
def leaves_a_daemon(conv: Conversation):
    process = subprocess.Popen(["/bin/sh", "-c", "(setsid sleep 1000 & echo $!) "], stdout=subprocess.PIPE)
    conv.state.daemon = int(process.stdout.readline())
    process.stdout.close()
    process.wait()
    return str(conv.state.daemon)
