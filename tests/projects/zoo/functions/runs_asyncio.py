from _gen import *  # <AUTO GENERATED>
import asyncio


@func_description("One of the zoo.")
def runs_asyncio(conv: Conversation):
    async def nested():
        await asyncio.sleep(0)
        return "nested"
    
    
    return asyncio.run(nested())
