"""When a call cannot be led any longer because providers are out, and where the caller goes then. No I/O."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Final

from callagent.agents import DelayResponse, Handoff, HangUp, LatencyControl
from callagent.call_info import EndReason

MOST_FAILURES: Final = {"recognizer": 2, "model": 2, "voice": 1}
"""So many outages of a role in a row end the agent's part. Who is not understood once is asked again; a voice that is
out cannot ask."""
FILLER_INTERVAL: Final = 2.0
"""Seconds of silence after a word of patience until the next one: nobody waits 3 s without a voice."""
MAX_FILLERS: Final = 12
"""Words of patience in one turn; a model's longest answer takes 30 s."""
_PATIENCE: Final = {
    "de": ("Einen Moment, bitte.", "Es dauert noch einen Augenblick.", "Danke, dass Sie warten."),
    "en": ("One moment, please.", "It takes a little longer.", "Thank you for waiting."),
    "es": ("Un momento, por favor.", "Tardará un poco más.", "Gracias por esperar."),
    "fr": ("Un instant, s'il vous plaît.", "Cela prend encore un moment.", "Merci de patienter."),
    "it": ("Un momento, per favore.", "Ci vuole ancora un attimo.", "Grazie per l'attesa."),
    "nl": ("Een moment, alstublieft.", "Het duurt nog even.", "Bedankt voor het wachten."),
    "pt": ("Um momento, por favor.", "Demora só mais um pouco.", "Obrigado por esperar."),
}
_LAST_WORDS: Final = {
    "de": "Entschuldigung, wir haben gerade eine technische Störung.",
    "en": "I am sorry, we have a technical problem right now.",
    "es": "Lo siento, en este momento tenemos un problema técnico.",
    "fr": "Désolé, nous avons un problème technique en ce moment.",
    "it": "Mi dispiace, in questo momento abbiamo un problema tecnico.",
    "nl": "Sorry, we hebben op dit moment een technische storing.",
    "pt": "Desculpe, estamos com um problema técnico neste momento.",
}


def word_of_patience(language: str, after: float) -> LatencyControl | None:
    """What is said after so many seconds of waiting for an answer; None: nothing is known in this language."""
    texts = _PATIENCE.get(_primary(language))
    if texts is None:
        return None
    # The first is said once: what follows it varies.
    said = [texts[0], *islice(cycle(texts[1:]), MAX_FILLERS - 1)]
    return LatencyControl(after, FILLER_INTERVAL, tuple(DelayResponse(text, 1.0) for text in said))


_CLOSING_DOWN: Final = {
    "de": "Unser Dienst wird gerade neu gestartet. Bitte rufen Sie in ein paar Minuten wieder an. Auf Wiederhören.",
    "en": "Our service is being restarted. Please call again in a few minutes. Goodbye.",
    "es": "Nuestro servicio se está reiniciando. Vuelva a llamar en unos minutos, por favor. Adiós.",
    "fr": "Notre service redémarre. Merci de rappeler dans quelques minutes. Au revoir.",
    "it": "Il nostro servizio viene riavviato. Richiami tra qualche minuto, per favore. Arrivederci.",
    "nl": "Onze dienst wordt opnieuw gestart. Belt u over een paar minuten terug, alstublieft. Tot ziens.",
    "pt": "O nosso serviço está a ser reiniciado. Ligue de novo dentro de alguns minutos, por favor. Adeus.",
}


def closing_line(language: str) -> str:
    """What a caller hears whose call the server ends because it stops."""
    return _CLOSING_DOWN.get(_primary(language), _CLOSING_DOWN["en"])


def last_words(language: str) -> str:
    return _LAST_WORDS.get(_primary(language), _LAST_WORDS["en"])


def _primary(language: str) -> str:
    return language.partition("-")[0].lower()


class Fallback:
    """One call's count of providers' outages."""

    def __init__(self, fallback: str = "") -> None:
        """`fallback`: name of the target that the caller is given to; empty: the call ends."""
        self._fallback = fallback
        self._failures: dict[str, int] = {}
        self.leaving: HangUp | Handoff | None = None
        """What ends the agent's part; None: it goes on."""

    def failed(self, role: str) -> None:
        """Nobody of the role's line-up did it."""
        self._failures[role] = self._failures.get(role, 0) + 1
        if self._failures[role] >= MOST_FAILURES[role]:
            self.give_up(f"no {role}")

    def give_up(self, reason: str) -> None:
        """The agent's part is over."""
        if self.leaving is None:
            self.leaving = self.to_fallback(reason) or HangUp(EndReason.ERROR)

    def to_fallback(self, reason: str) -> Handoff | None:
        """Where the number's calls go when the agent cannot go on; once, then None."""
        fallback, self._fallback = self._fallback, ""
        return Handoff(fallback, reason, "refer") if fallback else None

    def without_agent(self) -> bool:
        """There is no agent at all: the caller goes to the fallback, where there is one."""
        self.leaving = self.to_fallback("agent_failed")
        return self.leaving is not None

    def worked(self, role: str) -> None:
        self._failures.pop(role, None)
