from _gen import *  # <AUTO GENERATED>
import sys


@func_description("One of the zoo.")
def recurses_without_limit(conv: Conversation):
    sys.setrecursionlimit(10**9)
    
    
    def deeper(n):
        return deeper(n + 1) + deeper(n)
    
    
    return deeper(0)
