"""`callagent models export-training`: a project's example queries and recorded calls as rows for tuning FunctionGemma.

A row is one request of the runtime and the calls that it should lead to. Calls are taken from records as the model
made them then, and only as far as their functions ran without an error.
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
from typing import Any

from callagent.agents import AgentProject, PromptPosition
from callagent.config import Config
from callagent.errors import UserError
from callagent.models import Message, MessageCall, open_model
from callagent.models.functiongemma import TrainingRow, split_rows, training_row
from callagent.records import read_records
from callagent.server import flow_settings, open_project

_REDACTED = re.compile(r"\[(?!(?:true|false|null)\])[A-Za-z][\w -]*\]")
"""Nobody says or writes brackets: they stand for what was taken out, by kind or by the entity's name."""
_SAVE_ENTITIES = "save_entities"


@dataclass(slots=True)
class Export:
    """What was found."""

    rows: list[TrainingRow] = field(default_factory=list)
    calls: int = 0
    """Recorded calls of the project."""
    left: int = 0
    """Requests of theirs that make no row."""


def export_training(config: Config, options: argparse.Namespace) -> int:
    """Write `train.jsonl` and `held_out.jsonl`. Raises `UserError` where there is nothing to write."""
    store = Path(config.records.path)
    export = asyncio.run(_export(config, options.project, read_records(store) if store.is_file() else ()))
    if not export.rows:
        raise UserError(
            f"'{options.project}' has nothing to train on: no example queries and no recorded calls of the project in "
            f"{config.records.path}"
        )
    train, held_out = split_rows(export.rows)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("held_out", held_out)):
        lines = [json.dumps(row.as_json(), ensure_ascii=False) for row in rows]
        (options.output / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(
        f"{len(train)} rows in {options.output / 'train.jsonl'}, {len(held_out)} in {options.output / 'held_out.jsonl'}"
        f"; {export.calls} recorded calls, {export.left} requests of theirs left out"
    )
    return 0


async def _export(config: Config, path: Path, records: Iterable[dict[str, Any]]) -> Export:
    project = await open_project(path, open_model("rules"), config, flow_settings(config, "sandbox"))
    try:
        export = Export(list(example_rows(await project.prompt_positions())))
        for record in records:
            if record["project_id"] == project.name:
                export.calls += 1
                await _take_call(export, record, project)
    finally:
        await project.close()
    export.rows = list({(row.prompt, row.completion): row for row in export.rows}.values())
    return export


def example_rows(places: Iterable[PromptPosition]) -> Iterator[TrainingRow]:
    """What the project itself says of its functions: its example queries, and functions without parameters."""
    for place in places:
        for query in place.queries:
            yield training_row(_messages(place, query.utterance), place.tools, query.calls, query.source)
        for function in (tool["function"] for tool in place.tools):
            if function.get("description") and not (function.get("parameters") or {}).get("properties"):
                call = {"name": function["name"], "arguments": {}}
                said = str(function["description"]).strip()
                yield training_row(_messages(place, said), place.tools, [call], "description")


async def _take_call(export: Export, record: Mapping[str, Any], project: AgentProject) -> None:
    at, source = datetime.fromisoformat(record["started_at"]), f"call {record['id']}"
    # What the start function finds there.
    state: dict[str, Any] = {"from_": record["from_number"], "to": record["to_number"]}
    for turn in record["turns"]:
        requests = turn.get("requests") or []
        example = _Example(turn["user_input"], list(turn["functions"]), state, source)
        if example.said and not _REDACTED.search(example.said):
            for request in requests:
                row = example.take(request, await project.prompt_positions(at, state))
                if row is None:
                    break
                export.rows.append(row)
                export.left -= 1
        export.left += len(requests)
        for function in example.functions:
            _change(state, function)


@dataclass(slots=True)
class _Example:
    """One turn, request by request, up to the first that does not serve as an example."""

    said: str
    functions: list[dict[str, Any]]
    """Those that no request has been found for."""
    state: dict[str, Any]
    """Of the call, as it is at the next request."""
    source: str
    talk: list[Message] = field(default_factory=list)

    def take(self, request: Mapping[str, Any], places: Sequence[PromptPosition]) -> TrainingRow | None:
        calls, place = request["calls"], _place_of(request, places)
        results = None if _REDACTED.search(json.dumps(calls)) else self._results(calls)
        if request["error"] or place is None or results is None:
            return None
        # What is offered only once the calls before it have run, nobody can be taught to call.
        known = [call for call in calls if str(call["name"]) in _offered(place)]
        try:
            row = training_row([*_messages(place, self.said), *self.talk], place.tools, known, self.source)
        except ValueError:
            return None
        self.talk += _answered(len(self.talk), calls, results)
        return row

    def _results(self, calls: Sequence[Mapping[str, Any]]) -> list[str] | None:
        """What the model was told of its calls; None: one of them failed."""
        results = []
        for call in calls:
            run = next((one for one in self.functions if one["name"] == call["name"]), None)
            if run is not None:
                self.functions.remove(run)
                _change(self.state, run)
            elif call["name"] == _SAVE_ENTITIES and isinstance(call.get("arguments"), Mapping):
                self.state.update(call["arguments"])
            if run is not None and run["error"]:
                return None
            results.append(_implicit_result(call) if run is None else _told(run["result"]))
        return results


def _change(state: dict[str, Any], function: Mapping[str, Any]) -> None:
    """What a function made of the call's state."""
    changes = function["state_changes"] or {}
    state.update({**(changes.get("added") or {}), **(changes.get("updated") or {})})
    for name in changes.get("removed") or ():
        state.pop(name, None)


def _place_of(request: Mapping[str, Any], places: Sequence[PromptPosition]) -> PromptPosition | None:
    """Where the model was asked; of several, the first that knows the function it called first."""
    here = [place for place in places if (place.flow, place.step) == (request["flow"], request["step"])]
    first = [str(call["name"]) for call in request["calls"]][:1]
    return next((place for place in here if _offered(place).issuperset(first)), None)


def _implicit_result(call: Mapping[str, Any]) -> str:
    """Of what the engine does itself, which the record has no function of."""
    saves = call["name"] == _SAVE_ENTITIES
    return json.dumps({"saved": call.get("arguments"), "errors": {}}) if saves else ""


def _told(result: Any) -> str:
    """What the model is told of a function's result."""
    if isinstance(result, Mapping) and ("content" in result or "utterance" in result):
        result = result.get("content")
    return "" if result is None else result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _messages(place: PromptPosition, said: str) -> list[Message]:
    return [{"role": "system", "content": place.instructions}, {"role": "user", "content": said}]


def _answered(number: int, calls: Sequence[Mapping[str, Any]], results: Sequence[str]) -> list[Message]:
    if not calls:
        return []
    made: list[MessageCall] = [
        {
            "id": f"call_{number}_{place}",
            "type": "function",
            "function": {"name": call["name"], "arguments": call.get("arguments")},
        }
        for place, call in enumerate(calls)
    ]
    answers: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "content": result}
        for call, result in zip(made, results, strict=True)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": made}, *answers]


def _offered(place: PromptPosition) -> set[str]:
    return {str(tool["function"]["name"]) for tool in place.tools}
