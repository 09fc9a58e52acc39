"""`callagent models export-training`: a project's example queries and recorded calls as rows for tuning FunctionGemma.

A row is one request to the model and the calls that should answer it. Recorded calls of functions are taken as the
model made them, up to the first whose function failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from callagent.agents import AgentProject, PromptPosition
from callagent.config import Config
from callagent.errors import UserError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at, text_at
from callagent.models import Message, MessageCall, open_model
from callagent.models.functiongemma import TrainingRow, split_rows, training_row
from callagent.records import CallRecord, FunctionRecord, RequestRecord, TurnEntry, read_records
from callagent.server import flow_settings, open_project

_REDACTED: Final = re.compile(r"\[(?!(?:true|false|null)\])[A-Za-z][\w -]*\]")
"""The name of a kind or an entity in brackets, with which redaction replaces a text: callers do not say brackets."""
_SAVE_ENTITIES: Final = "save_entities"


@dataclass(slots=True)
class Export:
    """The rows from a project and its records."""

    rows: list[TrainingRow] = field(default_factory=list)
    calls: int = 0
    """Number of the project's recorded calls."""
    skipped: int = 0
    """Number of requests in these calls that make no row."""


def export_training(config: Config, options: argparse.Namespace) -> int:
    """Write `train.jsonl` and `held_out.jsonl`. Raises `UserError` if there is nothing to write."""
    store = Path(config.records.path)
    export = asyncio.run(_export(config, options.project, read_records(store) if store.is_file() else ()))
    if not export.rows:
        raise UserError(
            f"'{options.project}' has nothing to train on: no example queries, and no recorded calls in "
            f"'{config.records.path}'; add queries to the project, or name the store with its calls in records.path"
        )
    # Rows are split by utterance: a model must not be tested with an utterance that it was trained on.
    train, held_out = split_rows(export.rows)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("held_out", held_out)):
        lines = [json.dumps(row.as_json(), ensure_ascii=False) for row in rows]
        (options.output / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(
        f"{len(train)} rows in {options.output / 'train.jsonl'}, {len(held_out)} in {options.output / 'held_out.jsonl'}"
        f"; {export.calls} recorded calls, {export.skipped} requests of theirs left out"
    )
    return 0


async def _export(config: Config, path: Path, records: Iterable[JsonObject]) -> Export:
    # A training row needs no answers, so the simplest model is enough to open the project with.
    project = await open_project(path, open_model("rules"), config, flow_settings(config, "sandbox"))
    try:
        export = Export(list(example_rows(await project.prompt_positions())))
        for record in records:
            if record["project_id"] == project.name:
                export.calls += 1
                await _add_call(export, CallRecord.from_json(record), project)
    finally:
        await project.close()
    # Callers say the same things, so equal rows are exported once.
    export.rows = list({(row.prompt, row.completion): row for row in export.rows}.values())
    return export


def example_rows(positions: Iterable[PromptPosition]) -> Iterator[TrainingRow]:
    """Yield rows from the project's example queries, and from the descriptions of functions without parameters."""
    for position in positions:
        for query in position.queries:
            messages = _messages(position, query.utterance)
            yield training_row(messages, position.tools, query.calls, query.source)
        for function in (tool["function"] for tool in position.tools):
            description = function.get("description", "").strip()
            if description and not object_at(function.get("parameters") or {}, "properties"):
                # Without arguments the description itself is an utterance that should lead to the call.
                call: JsonObject = {"name": function["name"], "arguments": {}}
                yield training_row(_messages(position, description), position.tools, [call], "description")


async def _add_call(export: Export, record: CallRecord, project: AgentProject) -> None:
    at, source = datetime.fromisoformat(record.started_at), f"call {record.id}"
    # The start function finds these two in the state.
    state: MutableJsonObject = {"from_": record.from_number, "to": record.to_number}
    for turn in record.turns:
        example = _Example(turn.user_input, list(turn.functions), state, source)
        # Requests after the first unusable one are skipped, because their prompts contain its results.
        rows = await _rows_of(turn, example, project, at)
        export.rows += rows
        export.skipped += len(turn.requests) - len(rows)
        # Functions that no request called, such as the start function, change the state as well.
        for function in example.functions:
            _apply_changes(state, function)


async def _rows_of(turn: TurnEntry, example: _Example, project: AgentProject, at: datetime) -> list[TrainingRow]:
    """Return a row for each request of a turn, up to the first one that cannot serve as an example."""
    rows: list[TrainingRow] = []
    if not example.utterance or _REDACTED.search(example.utterance):
        return rows
    for request in turn.requests:
        row = example.row_of(request, await project.prompt_positions(at, example.state))
        if row is None:
            break
        rows.append(row)
    return rows


@dataclass(slots=True)
class _Example:
    """One turn of a recorded call, as far as its requests have been made into rows."""

    utterance: str
    functions: list[FunctionRecord]
    """Functions of the turn that have not yet been assigned to a request."""
    state: MutableJsonObject
    """The call's state at the next request."""
    source: str
    messages: list[Message] = field(default_factory=list)
    """The model's calls in this turn so far, and their results."""

    def row_of(self, request: RequestRecord, positions: Sequence[PromptPosition]) -> TrainingRow | None:
        """Return the row of the next request; None if it cannot serve as an example."""
        position = _position_of(request, positions)
        results = None if _REDACTED.search(json.dumps(request.calls)) else self._results(request.calls)
        if request.error or position is None or results is None:
            return None
        # Functions that are offered only after earlier calls of this request have run do not belong to its answer.
        offered = [call for call in request.calls if str(call["name"]) in _function_names(position)]
        try:
            messages = [*_messages(position, self.utterance), *self.messages]
            row = training_row(messages, position.tools, offered, self.source)
        except ValueError:
            return None
        self.messages += _call_messages(len(self.messages), request.calls, results)
        return row

    def _results(self, calls: Sequence[JsonObject]) -> list[str] | None:
        """Return the results of the calls as the model was told them; None if one of the functions failed."""
        results = []
        for call in calls:
            run = next((one for one in self.functions if one.name == call["name"]), None)
            if run is not None:
                self.functions.remove(run)
                _apply_changes(self.state, run)
            elif call["name"] == _SAVE_ENTITIES and isinstance(arguments := call.get("arguments"), Mapping):
                self.state.update(arguments)
            if run is not None and run.error:
                return None
            results.append(_implicit_result(call) if run is None else _result_text(run.result))
        return results


def _apply_changes(state: MutableJsonObject, function: FunctionRecord) -> None:
    """Change the call's state as a function has changed it."""
    changes = function.state_changes
    state.update({**object_at(changes, "added"), **object_at(changes, "updated")})
    for name in list_at(changes, "removed"):
        state.pop(str(name), None)


def _position_of(request: RequestRecord, positions: Sequence[PromptPosition]) -> PromptPosition | None:
    """Return the position of a request; of several, the first that offers the function that was called first."""
    here = [one for one in positions if (one.flow, one.step) == (request.flow, request.step)]
    first = [str(call["name"]) for call in request.calls][:1]
    return next((position for position in here if _function_names(position).issuperset(first)), None)


def _implicit_result(call: JsonObject) -> str:
    """Return the result of a call that the engine itself carries out, so that the record has no function for it."""
    is_save = call["name"] == _SAVE_ENTITIES
    return json.dumps({"saved": call.get("arguments"), "errors": {}}) if is_save else ""


def _result_text(result: JsonValue) -> str:
    """Return a function's result as the model is told it."""
    if isinstance(result, Mapping) and ("content" in result or "utterance" in result):
        result = result.get("content")
    return "" if result is None else result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _messages(position: PromptPosition, utterance: str) -> list[Message]:
    return [{"role": "system", "content": position.instructions}, {"role": "user", "content": utterance}]


def _call_messages(number: int, calls: Sequence[JsonObject], results: Sequence[str]) -> list[Message]:
    """Return the model's calls and their results as messages; `number` makes their identifiers unique in the turn."""
    if not calls:
        return []
    made: list[MessageCall] = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": text_at(call, "name"), "arguments": call.get("arguments")},
        }
        for place, call in enumerate(calls)
    ]
    answers: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(made, results, strict=True)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": made}, *answers]


def _function_names(position: PromptPosition) -> set[str]:
    return {tool["function"]["name"] for tool in position.tools}
