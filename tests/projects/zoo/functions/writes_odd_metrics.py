from _gen import *  # <AUTO GENERATED>


@func_description("One of the zoo.")
def writes_odd_metrics(conv: Conversation):
    conv.write_metric("NAN", float("nan"))
    conv.write_metric("N" * 100_000, 1)
    conv.write_metric(7, object())
    return "written"
