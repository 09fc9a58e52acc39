from _gen import *  # <AUTO GENERATED>


@func_description("Pay with a card.")
@func_parameter("card", "The digits that the caller keyed in.")
def pay(conv: Conversation, card: str):
    """As careless with the card as code can be."""
    conv.state.card = card
    conv.state.spoken = " ".join(card[at : at + 4] for at in range(0, 16, 4))
    conv.log.info(f"paying with {card}")
    conv.write_metric("CARD", card)
    print("card", card)
    if conv.state.tried is None:
        conv.state.tried = True
        raise ValueError(f"{card} is not valid")
    return {"content": f"Paid with {card}, of {len(card)} digits, ending {card[-2:]}."}
