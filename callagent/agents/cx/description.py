"""An app as a worker describes it, with the app's Python run once: for `check`, and before the first call."""

from __future__ import annotations

from dataclasses import replace

from callagent.agents.cx.format import Rule
from callagent.agents.kernel import Finding
from callagent.agents.tree import ProjectDescription, describe
from callagent.errors import WorkerError
from callagent.workers.protocol import WorkerPool


async def describe_app(pool: WorkerPool, variant: str = "", deployment: str = "") -> ProjectDescription:
    """A worker's `{"tools", "places"}`, and what is wrong, with rules. Raises `WorkerError`.

    `tools` are those that models see as the worker declares them, `places` the folders of all that is served, by
    variant. `variant`: which of several; empty: the first. `deployment`: which one serves it; empty: the project's own.
    """
    begun: list[tuple[str, int]] = []
    try:
        context = {"variant": variant, "deployment": deployment}
        described = await describe(pool, lambda file, line: begun.append((file, line)), context)
    except WorkerError as error:
        if not begun:
            raise
        message = f"its Python ends the process that runs it, or does not end: {error}"
        return ProjectDescription({"tools": {}}, [Finding(*begun[-1], message, Rule.ENDLESS.value)], [])
    errors = [replace(each, rule=_rule_of(each).value) for each in described.errors]
    return ProjectDescription(
        described.answer, errors, [replace(each, rule=Rule.AWAY.value) for each in described.unreachable]
    )


def _rule_of(failure: Finding) -> Rule:
    ends = failure.message.startswith(("SystemExit", "OutOfTime", "KeyboardInterrupt"))
    return Rule.ENDLESS if ends else Rule.FAILS
