"""`config/translations.yaml`: texts by key and language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callagent.agents.kernel import Reader

Translations = Mapping[str, Mapping[str, str]]
"""Key -> language -> text."""


def load_translations(root: Reader, languages: Sequence[str]) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for reader in root.maps("translations"):
        name = reader.required_text("name")
        texts = reader.map("translations")
        table[name] = {language: str(texts.raw(language) or "") for language in texts.names()}
        missing = [language for language in languages if language not in table[name]]
        extra = [language for language in table[name] if language not in languages]
        if missing:
            reader.error(f"Translation '{name}' lacks the languages {missing}.", "translations")
        if extra:
            reader.error(f"Translation '{name}' has languages that languages.yaml does not: {extra}.", "translations")
    return table


def translate(table: Translations, key: str, language: str | None) -> str | None:
    """The text in `language`, in the same language of another region, or None."""
    texts = table.get(key, {})
    if not language or language in texts:
        return texts.get(language or "")
    short = language.split("-")[0]
    return next((text for code, text in texts.items() if code.split("-")[0] == short), None)
