"""Settings of the format that this server knows and ignores, so that nobody waits for their effect in vain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from callagent.agents.flows.format import ExperimentalSettings

_ALL = frozenset({"*"})
_OVERRIDES = ("channel_overrides", "flow_overrides", "language_overrides", "steps", "variant_overrides")
_HONOURED: Mapping[str, frozenset[str]] = {
    "asr": frozenset({"initial_timeout", "hard_timeout", "eager_final"}),
    "eot": frozenset({"provider", "threshold", "timeout_ms"}),
    "background_track": _ALL,
    "handoff_api": frozenset({"state_keys", "aliases", "shared_id_state_key"}),
    "smart_vad": frozenset({"is_enabled", "default_function_wait", "gated_functions", "nongated_functions"}),
    "vad": frozenset({"vad_end"}),
    "barge_in": frozenset({"is_enabled", "enable_on_start_turn", "experimental_config"}),
    "dtmf": frozenset({"global", "disable_speech", "first_digit_timeout"}),
    "conversation_control": frozenset({"max_silence_count", "hangup_utterance", "channel_overrides"}),
    "filler_utterances": _ALL,
    "prompts": frozenset(
        {
            "silence",
            "step_header",
            "step_footer",
            "context_information_precursor",
            "context_information",
            "function_not_found",
            "language_switching_instructions",
            "non_english_rag",
            "non_english_system",
            "webchat_decorator",
            "voice_decorator",
            "sms_decorator",
            "whatsapp_decorator",
        }
    ),
    "ragdoll": frozenset(
        {
            "threshold",
            "top_k",
            "in_flow_threshold",
            "qa_metric_threshold",
            "history_len",
            "previous_user_inputs_len",
            "channel_topic_exclusions",
            "qa_metric_exclusions",
        }
    ),
    "llm": frozenset({"provider_model_id", "inference_parameters", "include_kb_functions_in_flows"}),
    "memory": frozenset({"identifier_source", "repeat_caller"}),
}
"""Section of the experimental configuration -> its keys that have an effect."""
KNOWN_SECTIONS = frozenset(_HONOURED) | {
    "ab", "agentic_dial", "audio_enhancement", "backchannelling", "csat_sms", "email",
    "language_switching", "polyff", "polywhirl_rollout", "realtime", "tts_postprocessing", "verified_context",
    "webchat", "webhooks",
}  # fmt: skip


def ignored_settings(experimental: ExperimentalSettings) -> list[str]:
    """Return the dotted names of ignored settings, sorted; a section that is ignored as a whole is named alone."""
    return sorted(set(_names(experimental)))


def unknown_sections(experimental: ExperimentalSettings) -> list[str]:
    return sorted(str(name) for name in experimental.data if name not in KNOWN_SECTIONS)


def _names(experimental: ExperimentalSettings) -> Iterator[str]:
    for name in experimental.data:
        honoured = _HONOURED.get(name)
        if honoured is None and name in KNOWN_SECTIONS:
            yield name
        elif honoured is not None and honoured is not _ALL:
            yield from (f"{name}.{key}" for key in _keys(experimental.section(name)) if key not in honoured)


def _keys(section: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of a section and of its overrides by flow and step."""
    for key, value in section.items():
        if key not in _OVERRIDES:
            yield str(key)
        elif isinstance(value, dict):
            for inner in value.values():
                yield from _keys(inner if isinstance(inner, dict) else {})
