"""Whether a text fits a GBNF grammar, as llguidance decides while a model decodes: byte by byte, then the end."""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

_BYTES = LLTokenizer("byte")


@dataclass(frozen=True)
class Grammar:
    text: str
    """As the matcher takes it."""

    @classmethod
    def parse(cls, gbnf: str) -> Grammar:
        grammar = cls(LLMatcher.grammar_from_lark(gbnf_to_lark(gbnf)))
        error = LLMatcher(_BYTES, grammar.text).get_error()
        assert not error, error
        return grammar

    def accepts(self, text: str) -> bool:
        """The whole text, and that it may end there."""
        matcher, tokens = LLMatcher(_BYTES, self.text), _BYTES.tokenize_str(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
