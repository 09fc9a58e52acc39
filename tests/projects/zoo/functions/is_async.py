from _gen import *  # <AUTO GENERATED>


async def is_async(conv: Conversation):
    return "awaited"
