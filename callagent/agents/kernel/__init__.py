"""What all project formats share: documents, findings, patterns, sentences, secure digits, a project's Python.

Names are imported when they are first used, because workers and `callagent --help` need few of them.
"""

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.agents.kernel.documents import (
        SECRET_NAME,
        TEXT,
        CheckReport,
        Document,
        DocumentPath,
        Finding,
        Findings,
        InvalidYaml,
        Reader,
        clean_name,
        compose_yaml,
        parse_yaml,
        read_text,
        read_yaml,
        tool_name,
        type_name,
    )
    from callagent.agents.kernel.patterns import Pattern, expand_groups, has_nested_repeats
    from callagent.agents.kernel.project_python import (
        ModuleSpace,
        TooLarge,
        contain,
        error_message,
        error_report,
        import_report,
        remedy_of,
        to_json,
        to_json_or_note,
    )
    from callagent.agents.kernel.secure_digits import Vault
    from callagent.agents.kernel.sentences import SentenceSplitter

_MODULES = {
    "CheckReport": "documents",
    "Document": "documents",
    "DocumentPath": "documents",
    "Finding": "documents",
    "Findings": "documents",
    "InvalidYaml": "documents",
    "ModuleSpace": "project_python",
    "Pattern": "patterns",
    "Reader": "documents",
    "SECRET_NAME": "documents",
    "SentenceSplitter": "sentences",
    "TEXT": "documents",
    "TooLarge": "project_python",
    "Vault": "secure_digits",
    "clean_name": "documents",
    "compose_yaml": "documents",
    "contain": "project_python",
    "error_message": "project_python",
    "error_report": "project_python",
    "expand_groups": "patterns",
    "import_report": "project_python",
    "parse_yaml": "documents",
    "to_json": "project_python",
    "to_json_or_note": "project_python",
    "read_text": "documents",
    "read_yaml": "documents",
    "remedy_of": "project_python",
    "has_nested_repeats": "patterns",
    "tool_name": "documents",
    "type_name": "documents",
}

__all__ = [
    "SECRET_NAME",
    "TEXT",
    "CheckReport",
    "Document",
    "DocumentPath",
    "Finding",
    "Findings",
    "InvalidYaml",
    "ModuleSpace",
    "Pattern",
    "Reader",
    "SentenceSplitter",
    "TooLarge",
    "Vault",
    "clean_name",
    "compose_yaml",
    "contain",
    "error_message",
    "error_report",
    "expand_groups",
    "has_nested_repeats",
    "import_report",
    "parse_yaml",
    "read_text",
    "read_yaml",
    "remedy_of",
    "to_json",
    "to_json_or_note",
    "tool_name",
    "type_name",
]

__getattr__ = lazy_exports(__name__, _MODULES)
