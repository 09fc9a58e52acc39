from _gen import *  # <AUTO GENERATED>
from datetime import date, timedelta

SUNDAY = 6
MAX_DAYS_AHEAD = 14


def check_day(conv: Conversation, flow: Flow):
    """A day that we can deliver on goes on to be confirmed; any other is asked for again."""
    today = conv.clock.today()
    day = _parse(conv.state.delivery_date)
    flow.goto_step("Delivery day")
    if day is None or not today < day <= today + timedelta(days=MAX_DAYS_AHEAD):
        return {"utterance": "I can book a day in the next two weeks. Which day suits you?"}
    if day.weekday() == SUNDAY:
        return {"utterance": "We do not deliver on Sundays. Which other day suits you?"}
    window = conv.state.delivery_window or ""
    if window == "evening" and conv.variant.evening_delivery in (False, "false"):
        return {"utterance": "We do not deliver in the evening there. Morning or afternoon?"}
    conv.state.chosen_day = f"{day:%A}, {day:%B} {day.day}" + (f", in the {window}" if window else "")
    flow.goto_step("Confirm day")
    return ""


def _parse(value) -> date | None:
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError:
        return None
