from _gen import *  # <AUTO GENERATED>


@func_description("The caller says goodbye: bye, that is everything, that is all.")
def say_goodbye(conv: Conversation):
    return {"utterance": "Thank you for calling Harbour Parcel. Goodbye.", "hangup": True}
