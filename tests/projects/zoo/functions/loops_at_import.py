from _gen import *  # <AUTO GENERATED>

while True:
    pass
