"""Names, spelt-out words and e-mail addresses."""

from __future__ import annotations

import re

_NAME_INTRODUCED = re.compile(
    r"\b(?:(?:my|the|our|last|first|full|family) name(?:'s| is)|name is|i am|i'm|this is|it's|it is|call me|"
    r"(?:booking|reservation|appointment) (?:is )?(?:for|under)|under)\s+"
    r"(?P<name>[a-zà-ÿ][\w'’-]*(?:\s+[a-zà-ÿ][\w'’-]*)*)",
    re.IGNORECASE,
)
_ENDS_NAME = {
    "and", "calling", "speaking", "here", "from", "i", "my", "the", "a", "please", "thanks", "thank", "for", "at", "on",
    "with", "but", "that", "to", "it", "is", "not", "about", "so", "of",
}  # fmt: skip
_NO_NAME = {
    *_ENDS_NAME, "calling", "looking", "trying", "fine", "good", "sorry", "just", "very", "going", "interested",
    "happy", "waiting", "having", "yes", "no", "okay", "right", "correct", "wrong", "great",
}  # fmt: skip
_PARTICLES = {"van", "von", "de", "da", "der", "la", "le", "di", "bin", "al", "st", "mc"}
_SPELLING = re.compile(r"(?<!['’])\b[a-z](?:[\s.,-]+(?:double[\s-]+)?[a-z]\b){2,}", re.IGNORECASE)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_SPOKEN_EMAIL = re.compile(r"([\w.+-]+(?:\s+(?:dot|underscore|dash)\s+[\w.+-]+)*)\s+at\s+([\w-]+(?:\s+dot\s+[\w-]+)+)")
_MAX_NAME_WORDS = 4


def find_name(text: str, *, asked: bool = False) -> str:
    """A person's name; empty: none. `asked`: the caller was asked for it, so bare words may be one."""
    introduced = _NAME_INTRODUCED.search(text)
    if introduced and (name := _take_name(introduced["name"].split())):
        return name
    if not asked:
        return ""
    bare = re.sub(r"[^\w'’ -]+", " ", text).split()
    return _take_name(bare) if 0 < len(bare) <= _MAX_NAME_WORDS else ""


def find_spelling(text: str) -> str:
    """Letters spelt one by one (`s m i t h`), joined; empty: none."""
    spelt = _SPELLING.search(text)
    if not spelt:
        return ""
    doubled = re.sub(r"double[\s-]+([a-z])", r"\1\1", spelt[0], flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z]", "", doubled)


def find_email(text: str) -> str:
    """An e-mail address, written or spoken (`ann dot lee at example dot com`); empty: none."""
    if written := _EMAIL.search(text):
        return written[0]
    if not (spoken := _SPOKEN_EMAIL.search(text.lower())):
        return ""
    marks = {"dot": ".", "underscore": "_", "dash": "-"}
    local, domain = ("".join(marks.get(word, word) for word in part.split()) for part in spoken.groups())
    return f"{local}@{domain}"


def _take_name(candidates: list[str]) -> str:
    taken: list[str] = []
    for word in candidates[:_MAX_NAME_WORDS]:
        plain = word.lower().strip(".,'’")
        if not plain or plain in (_ENDS_NAME if taken else _NO_NAME) or any(c.isdigit() for c in plain):
            break
        taken.append(plain if plain in _PARTICLES else _capitalise(word.strip(".,")))
    return " ".join(taken)


def _capitalise(word: str) -> str:
    return word if not word.islower() else "-".join(part[:1].upper() + part[1:] for part in word.split("-"))
