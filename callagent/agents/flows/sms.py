"""`config/sms_templates.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callagent.agents.kernel import Reader


@dataclass(frozen=True, slots=True)
class SmsTemplate:
    name: str
    text: str
    senders: Mapping[str, str]
    """Environment (`sandbox`, `pre-release`, `live`) -> number; empty: none."""


def load_sms_templates(root: Reader) -> dict[str, SmsTemplate]:
    templates = {}
    for reader in root.maps("sms_templates"):
        name = reader.required_text("name")
        if "env_phone_numbers" not in reader:
            reader.error("'env_phone_numbers' is required; its values may be empty.", "name")
        numbers = reader.map("env_phone_numbers")
        senders = {env: str(numbers.raw(env.replace("-", "_")) or "") for env in ("sandbox", "pre-release", "live")}
        templates[name] = SmsTemplate(name, reader.required_text("text"), senders)
    return templates
