"""What all project formats share: findings of a check, documents with line numbers, patterns, secure digits.

`kernel.runtime` is the part that runs in workers. Names are imported when they are first used, because workers and
`callagent --help` need few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.kernel.documents import (
        TEXT,
        Document,
        DocumentPath,
        Reader,
        parse_yaml,
        read_text,
        read_yaml,
        type_name,
        yaml_problem,
    )
    from callagent.agents.kernel.findings import CheckReport, Finding, Findings
    from callagent.agents.kernel.graph import GraphEdge, GraphFlow, GraphStep, ProjectGraph
    from callagent.agents.kernel.names import SECRET_NAME, clean_name, tool_name
    from callagent.agents.kernel.patterns import Pattern, expand, repeats_a_repeat
    from callagent.agents.kernel.prompt_position import ExampleQuery, PromptPosition
    from callagent.agents.kernel.sentences import SentenceSplitter
    from callagent.agents.kernel.vault import Vault

_MODULES = {
    "CheckReport": "findings",
    "Document": "documents",
    "DocumentPath": "documents",
    "ExampleQuery": "prompt_position",
    "Finding": "findings",
    "Findings": "findings",
    "GraphEdge": "graph",
    "GraphFlow": "graph",
    "GraphStep": "graph",
    "Pattern": "patterns",
    "ProjectGraph": "graph",
    "PromptPosition": "prompt_position",
    "Reader": "documents",
    "SECRET_NAME": "names",
    "SentenceSplitter": "sentences",
    "TEXT": "documents",
    "Vault": "vault",
    "clean_name": "names",
    "expand": "patterns",
    "parse_yaml": "documents",
    "read_text": "documents",
    "read_yaml": "documents",
    "repeats_a_repeat": "patterns",
    "tool_name": "names",
    "type_name": "documents",
    "yaml_problem": "documents",
}

__all__ = [
    "SECRET_NAME",
    "TEXT",
    "CheckReport",
    "Document",
    "DocumentPath",
    "ExampleQuery",
    "Finding",
    "Findings",
    "GraphEdge",
    "GraphFlow",
    "GraphStep",
    "Pattern",
    "ProjectGraph",
    "PromptPosition",
    "Reader",
    "SentenceSplitter",
    "Vault",
    "clean_name",
    "expand",
    "parse_yaml",
    "read_text",
    "read_yaml",
    "repeats_a_repeat",
    "tool_name",
    "type_name",
    "yaml_problem",
]

__getattr__ = lazy_exports(__name__, _MODULES)
