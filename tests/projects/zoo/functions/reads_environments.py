from _gen import *  # <AUTO GENERATED>
import os


@func_description("One of the zoo.")
def reads_environments(conv: Conversation):
    read = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                # Processes of the kernel have none.
                if file.read():
                    read.append(int(entry))
        except OSError:
            pass
    return {"content": "", "read": read}
