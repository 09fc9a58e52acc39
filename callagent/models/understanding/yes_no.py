"""Yes, no, and `say that again`."""

from __future__ import annotations

import re
from enum import Enum


class Answer(Enum):
    YES = "yes"
    NO = "no"


_SOFTENERS = r"(?:(?:um+|uh+|er+|well|oh|ah|hmm+|so|and|actually|i think|i guess|please)\b[ ,]*)*"
_YES = (
    r"(?:yes|yeah|yep|yup|yea|ya|sure|okay|ok|alright|all right|correct|exactly|absolutely|definitely|certainly|"
    r"of course|go ahead|please do|do it|go for it|right|fine|perfect|great|sounds (?:good|great|fine|right)|"
    r"(?:that|it)(?:'s| is| would be| will be) (?:right|correct|fine|good|great|perfect|okay|ok|it|me)|"
    r"that(?:'ll| will) (?:do|work)|that works|i (?:agree|confirm)|no problem|uh-huh|mm-hmm?|"
    r"why not|i'd (?:love|like) that|(?:i (?:do|am|would)|i'd (?:love|like) to)(?: please)?$)"
)
_NO = (
    r"(?:no|nope|nah|negative|never|not(?! (?:bad|sure|a problem)\b)|no thanks|no thank you|"
    r"(?:that|it)(?:'s| is) (?:not|wrong|incorrect)|(?:that|it) (?:isn't|(?:doesn't|does not|won't) work)|"
    r"wrong|incorrect|"
    r"i (?:don't|do not)(?: (?:want|think|agree|need|like)|$)|don't|do not|"
    r"i didn't|i'm not|i am not|"
    r"i'd rather not|i can't|i cannot|i'm (?:good|fine|all set)|rather not|never mind|nevermind|forget it|nothing|none)"
)
_STARTS_YES = re.compile(rf"{_SOFTENERS}{_YES}\b")
_STARTS_NO = re.compile(rf"{_SOFTENERS}{_NO}\b")
_NOT_A_NO = re.compile(rf"{_SOFTENERS}(?:no problem|no worries|nothing wrong)\b")
# A yes that is taken back in the same breath.
_TAKES_BACK = re.compile(r"\b(?:not (?:right|correct|quite)|isn't (?:right|correct)|wrong|incorrect|don't think so)\b")
_I_DO_NOT = re.compile(r"\bi (?:don't|do not) think so\b")
_REPEAT = re.compile(
    r"\b(?:(?:repeat|say) (?:that|it|this)|repeat (?:please|yourself)|once more|one more time|come again|pardon|"
    r"what (?:(?:\w+ )?was (?:that|it)|did you say)|"
    r"(?:didn't|did not|don't|couldn't) (?:catch|hear|get|understand) (?:that|it|you)|"
    r"say (?:that |it )?again|(?:could|can|would|will) you (?:please )?repeat|excuse me what|sorry what)\b"
    r"|^(?:sorry|excuse me|what|huh|repeat|again)$"
)


def normalise(text: str) -> str:
    """Lower case, plain apostrophes, no other marks but hyphens inside words."""
    lowered = re.sub(r"[’`´]", "'", text.lower())
    return re.sub(r"\s+", " ", re.sub(r"[^\w' -]+", " ", lowered)).strip()


def find_answer(text: str) -> Answer | None:
    """How an utterance answers a yes-or-no question; None: it does not."""
    said = normalise(text)
    if _I_DO_NOT.search(said):
        return Answer.NO
    if _STARTS_NO.match(said) and not _NOT_A_NO.match(said):
        return Answer.NO
    if _STARTS_YES.match(said):
        return Answer.NO if _TAKES_BACK.search(said) else Answer.YES
    return None


def is_repeat_request(text: str) -> bool:
    """Whether the caller asks to hear the last words again."""
    return bool(_REPEAT.search(normalise(text)))
