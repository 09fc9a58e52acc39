"""`topics/` and `child_topics/`: what the agent can answer questions from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from callagent.agents.kernel import Reader

MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    content: str
    actions: str
    examples: tuple[str, ...]
    file: str
    actions_line: int = 1
    variant: str | None = None
    """A child topic exists for this variant only."""


def load_topic(root: Reader, variant: str | None = None) -> Topic | None:
    """None: the topic is disabled."""
    file = root.document.file
    examples = root.texts("example_queries")
    if len(examples) > MAX_EXAMPLES:
        root.error(f"Example queries must be less than {MAX_EXAMPLES}", "example_queries")
    if variant is not None and "tags" in root:
        root.error("Child topics cannot have tags.", "tags")
    topic = Topic(
        name=root.text("name") or str(PurePosixPath(*PurePosixPath(file).parts[1:]).with_suffix("")),
        content=root.text("content"),
        actions=root.text("actions"),
        examples=examples,
        file=file,
        actions_line=root.text_line("actions"),
        variant=variant,
    )
    return topic if root.flag("enabled", True) else None
