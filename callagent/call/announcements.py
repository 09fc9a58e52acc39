"""Sentences that the server says itself, by language: while an answer is late, after a failure, and before it stops.

For other languages the English sentences are used. Only fillers are left out then, because an agent that speaks Polish
is not to say "one moment" in English.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import Final

from callagent.agents import DelayResponse, LatencyControl

FILLER_INTERVAL: Final = 2.0
"""Seconds of silence between two fillers; one more second to synthesise the next is 3 s without a voice at most."""
MAX_FILLERS: Final = 12
"""Fillers in one turn: with their pauses they cover the 30 s that a model may take."""
_WAITING: Final = {
    "de": ("Einen Moment, bitte.", "Es dauert noch einen Augenblick.", "Danke, dass Sie warten."),
    "en": ("One moment, please.", "It takes a little longer.", "Thank you for waiting."),
    "es": ("Un momento, por favor.", "Tardará un poco más.", "Gracias por esperar."),
    "fr": ("Un instant, s'il vous plaît.", "Cela prend encore un moment.", "Merci de patienter."),
    "it": ("Un momento, per favore.", "Ci vuole ancora un attimo.", "Grazie per l'attesa."),
    "nl": ("Een moment, alstublieft.", "Het duurt nog even.", "Bedankt voor het wachten."),
    "pt": ("Um momento, por favor.", "Demora só mais um pouco.", "Obrigado por esperar."),
}
_APOLOGY: Final = {
    "de": "Entschuldigung, wir haben gerade eine technische Störung.",
    "en": "I am sorry, we have a technical problem right now.",
    "es": "Lo siento, en este momento tenemos un problema técnico.",
    "fr": "Désolé, nous avons un problème technique en ce moment.",
    "it": "Mi dispiace, in questo momento abbiamo un problema tecnico.",
    "nl": "Sorry, we hebben op dit moment een technische storing.",
    "pt": "Desculpe, estamos com um problema técnico neste momento.",
}
_CLOSING_DOWN: Final = {
    "de": "Unser Dienst wird gerade neu gestartet. Bitte rufen Sie in ein paar Minuten wieder an. Auf Wiederhören.",
    "en": "Our service is being restarted. Please call again in a few minutes. Goodbye.",
    "es": "Nuestro servicio se está reiniciando. Vuelva a llamar en unos minutos, por favor. Adiós.",
    "fr": "Notre service redémarre. Merci de rappeler dans quelques minutes. Au revoir.",
    "it": "Il nostro servizio viene riavviato. Richiami tra qualche minuto, per favore. Arrivederci.",
    "nl": "Onze dienst wordt opnieuw gestart. Belt u over een paar minuten terug, alstublieft. Tot ziens.",
    "pt": "O nosso serviço está a ser reiniciado. Ligue de novo dentro de alguns minutos, por favor. Adeus.",
}


def waiting_fillers(language: str, after: float) -> LatencyControl | None:
    """Return the fillers for an answer that takes longer than `after` seconds; None if the language has no fillers."""
    texts = _WAITING.get(_primary(language))
    if texts is None:
        return None
    # The first is said once; those after it take turns.
    fillers = [texts[0], *islice(cycle(texts[1:]), MAX_FILLERS - 1)]
    return LatencyControl(after, FILLER_INTERVAL, tuple(DelayResponse(text, 1.0) for text in fillers))


def closing_line(language: str) -> str:
    """Return the sentence that callers hear before the server hangs up because it is being stopped."""
    return _CLOSING_DOWN.get(_primary(language), _CLOSING_DOWN["en"])


def apology(language: str) -> str:
    """Return the sentence that callers hear when a failure ends the agent's part of the call."""
    return _APOLOGY.get(_primary(language), _APOLOGY["en"])


def _primary(language: str) -> str:
    """Return the primary subtag of a language tag (RFC 5646 §2.2.1): `en` of `en-US`."""
    return language.partition("-")[0].lower()
