from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def returns_a_huge_number(conv: Conversation):
    return {"content": 10**400, "nan": float("nan")}
