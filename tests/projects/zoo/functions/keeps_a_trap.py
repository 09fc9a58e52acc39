from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def keeps_a_trap(conv: Conversation):
    class Trap:
        def __reduce__(self):
            raise ValueError("trap")
    
        def __str__(self):
            raise ValueError("trap")
    
        __repr__ = __str__
    
    
    conv.state.trap = Trap()
    return "kept"
