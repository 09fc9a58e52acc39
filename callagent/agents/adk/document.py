"""A YAML 1.1 file with the line of every key; texts are kept to the last space, they are a model's instructions."""

from __future__ import annotations

from typing import Any

from callagent.agents.kernel import Document, DocumentPath, Findings, yaml_problem

_DEEPEST = 50
"""Levels of a file; an alias may point at what holds it."""


def parse_yaml(text: str, file: str, findings: Findings) -> Document | None:
    """None, with an error, when it is not valid."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.version = "1.1"
    try:
        node = yaml.compose(text)
        _keep_letters(node, 0)
        data = None if node is None else yaml.constructor.construct_document(node)
    except (YAMLError, ValueError) as error:
        findings.error(file, *yaml_problem(error))
        return None
    lines: dict[DocumentPath, int] = {(): 1}
    if node is not None:
        _note_lines(node, (), lines)
    return Document(file, data, lines, findings)


def _keep_letters(node: Any, depth: int) -> None:
    """`y` and `n` alone are texts to the format's own reader, though YAML 1.1 has them as true and false."""
    if node is None or depth > _DEEPEST:
        return
    if isinstance(node.value, list):
        for item in node.value:
            for each in item if isinstance(item, tuple) else (item,):
                _keep_letters(each, depth + 1)
    elif node.value in ("y", "Y", "n", "N") and node.style is None:
        from ruamel.yaml.tag import Tag

        node.ctag = Tag(suffix="tag:yaml.org,2002:str")


def _note_lines(node: Any, path: DocumentPath, lines: dict[DocumentPath, int]) -> None:
    if not isinstance(node.value, list) or len(path) > _DEEPEST:
        return
    for index, item in enumerate(node.value):
        key, value = item if isinstance(item, tuple) else (None, item)
        place: DocumentPath = (*path, index if key is None else str(key.value))
        lines[place] = (value if key is None else key).start_mark.line + 1
        _note_lines(value, place, lines)
