"""The Replaces header (RFC 3891): which call another one takes the place of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callagent.sip.dialog import Dialog
from callagent.sip.grammar import escape
from callagent.sip.parameters import Parameters

_PLAIN = "-_.!~*'()"


@dataclass(frozen=True, slots=True)
class Replaces:
    call_id: str
    to_tag: str
    """Of the side that receives the header."""
    from_tag: str
    early_only: bool = False

    @classmethod
    def parse_single(cls, values: Sequence[str]) -> Replaces:
        """There may be one only (RFC 3891 §3)."""
        if len(values) != 1:
            raise ValueError("Replaces is not valid")
        call_id, separator, rest = values[0].strip().partition(";")
        parameters = Parameters.parse(separator + rest)
        to_tag, from_tag = parameters.get("to-tag"), parameters.get("from-tag")
        if not call_id or to_tag is None or from_tag is None:
            raise ValueError("Replaces is not valid")
        return cls(call_id.strip(), to_tag, from_tag, "early-only" in parameters)

    @classmethod
    def of(cls, dialog: Dialog) -> Replaces:
        """What takes our place in this dialog, as its peer reads it."""
        return cls(dialog.call_id, dialog.remote.tag or "", dialog.local.tag or "")

    def __str__(self) -> str:
        flag = ";early-only" if self.early_only else ""
        return f"{self.call_id};to-tag={self.to_tag};from-tag={self.from_tag}{flag}"

    @property
    def uri_header(self) -> str:
        """For the question-mark part of a Refer-To URI (RFC 5589 §7)."""
        return f"Replaces={escape(str(self), _PLAIN)}"
