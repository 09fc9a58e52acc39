"""Conversations at random, legal and not, for trees: what models may answer and callers may say.

A conversation is a case of `record_reference.py`; the same seed gives the same conversations. What is left out is what
we do otherwise than the reference, on purpose:

* Of calls side by side the reference stops the others when one fails; here they end, and what they and the one that
  failed had done to the state stays.
* Arguments that an agent's `input_schema` does not allow end a run there; here the model is told.
* A message with both a late result and a text is refused there; here both count.
* A transfer to nobody ("") fails there when the agent has answered; here the answer stands.
* An agent in a row that gives the conversation to itself adds to its `output_key` there; here it begins anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TEXTS = (
    "Yes.", "Two\nlines", "", "   ", "No major issues found.", "Grüße {who} ${x}", '{"text": "T", "stars": 3}',
    '```json\n{"text": "T", "stars": "4"}\n```', '{"stars": 1}', "damn rain", "See you.", "a storm", "7 and 8",
)  # fmt: skip
_TURNS = ("hello", "what else?", "roll a die", "you idiot", "ß {name}", "thanks")
_FILL = 60
"""Answers at the end of a script, so that none runs dry."""

_DICE: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("roll_die", {"sides": 1}), ("check_prime", {"nums": [7, 8, 11]}), ("check_prime", {"nums": []}),
    ("roll_die", {}), ("roll_die", {"sides": 0}), ("roll_die", {"sides": "1"}), ("roll_die", {"sides": 1, "more": 2}),
    ("roll_die", {"sides": None}), ("check_prime", {"nums": "seven"}), ("check_prime", {"nums": ["7"]}),
)  # fmt: skip
_WORDS = ("w", "skipped", "wrong", "callback fails", "closed", "chatty", "silent", "cold", "kind")
_TREES: Mapping[str, tuple[Sequence[str], Sequence[tuple[str, Mapping[str, Any]]]]] = {
    "core_basic_config": ((), ()),
    "core_callback_config": ((), _DICE),
    "core_custom_agent_config": ((), ()),
    "core_generate_content_config_config": ((), (("google_search", {"query": "x"}),)),
    "multi_agent_basic_config": (("root_agent", "code_tutor_agent", "math_tutor_agent"), ()),
    "multi_agent_llm_config": (("root_agent", "roll_agent", "prime_agent"), (*_DICE, ("example_tool", {}))),
    "multi_agent_loop_config": (("CriticAgent", "IterativeWritingPipeline"), (("exit_loop", {}),) * 3),
    "multi_agent_seq_config": (("CodeWriterAgent",), ()),
    "sub_agents_config": (("root_agent", "work_agent", "life_agent"), ()),
    "tool_agent_tool_config": (
        ("summarizer_agent",),
        (
            ("summarizer_agent", {"request": "text"}), ("summarizer_agent", {}), ("summarizer_agent", {"other": [1]}),
            ("web_search_agent", {"request": "x"}), ("summarizer_agent", {"request": "a", "more": 1}),
        ),
    ),
    "tool_builtin_config": ((), ()),
    "tool_functions_config": ((), _DICE),
    "tool_human_in_the_loop_config": (
        (),
        (
            ("ask_for_approval", {"purpose": "meals", "amount": 200}), ("reimburse", {"purpose": "p", "amount": 50}),
            ("ask_for_approval", {"purpose": "meals"}), ("reimburse", {}),
            ("reimburse", {"purpose": "p", "amount": "x"}),
        ),
    ),
    "adk_desk": (
        ("desk", "repairs", "sales", "wheels"),
        (
            ("look_up_bicycle", {"number": "12"}), ("look_up_bicycle", {"number": "x"}),
            ("order_part", {"part": "bell"}),
            ("order_part", {"part": "saddle", "colour": "green", "to": {"street": "Elm"}}), ("pass_to_workshop", {}),
            ("break_down", {}), ("look_up_bicycle", {}),
        ),
    ),
    "adk_library": (
        ("librarian", "summary", "finder"),
        (
            ("summary", {"title": "T"}), ("summary", {"title": "T", "pages": "3"}), ("search", {"word": "w"}),
            ("finder", {"request": "r"}), ("ask_for_loan", {"title": "T"}), ("clock", {}), ("stamp", {"date": "d"}),
            ("stamp", {}), ("find_shelf", {"title": "T", "floor": 2}), ("find_shelf", {}), ("ask_for_loan", {}),
        ),
    ),
    "adk_steps": (("critic", "weather"), (("exit_loop", {}),)),
    "adk_tangle": (
        ("hub", "line", "ring", "pair", "loner", "deep", "deeper", "helper", "second", "first", "turner", "clerk"),
        (
            *((name, {"word": word}) for name in ("note", "note_later") for word in _WORDS), ("fail", {"word": "w"}),
            ("clerk", {"request": "r"}), ("porter", {"request": "r"}), ("exit_loop", {}), ("stop_round", {}),
            ("get_user_choice", {"options": ["a", "b"]}), ("note", {}),
        ),
    ),
    "adk_row": (("row", "aide", "rounds", "runner", "shore", "closer"), (("exit_loop", {}),)),
    "adk_story": (("writer", "mender", "teller"), (("look_up", {"word": "w"}), ("look_up", {}))),
}  # fmt: skip
TREES = tuple(_TREES)
_FAILING: Sequence[Any] = (
    ["look_up_bicycle", {"number": "x"}], ["break_down", {}], ["summary", {"title": "T"}],
    ["summary", {"title": "T", "pages": "3"}],
    ["fail", {"word": "w"}], ["web_search_agent", {"request": "x"}],
    *([name, {"word": "callback fails"}] for name in ("note", "note_later")),
)  # fmt: skip
"""They come alone: of calls side by side the reference stops the others when one fails, here they all end."""
_LATE = {"tool_human_in_the_loop_config": "ask_for_approval", "adk_library": "ask_for_loan"}
"""Tools whose true result comes in a later turn."""


def conversations(trees: Sequence[str], seed: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` cases, the trees in turn."""
    for number in range(count):
        yield _Conversation(trees[number % len(trees)], random.Random(f"{seed}-{number}")).case()


class _Conversation:
    def __init__(self, tree: str, dice: random.Random) -> None:
        self._tree = tree
        self._agents, self._calls = _TREES[tree]
        self._dice = dice

    def case(self) -> dict[str, Any]:
        dice = self._dice
        script = [self._answer() for _ in range(dice.randint(1, 8))]
        turns: list[Any] = [dice.choice(_TURNS) for _ in range(dice.randint(1, 4))]
        late = _LATE.get(self._tree)
        if late and dice.random() < 0.6:
            script.insert(0, [[late, {"title": "T"} if late == "ask_for_loan" else {"purpose": "p", "amount": 200}]])
            turns.insert(dice.randint(1, len(turns)), _late_result(late, dice))
        case: dict[str, Any] = {
            "config": f"{self._tree}/root_agent.yaml",
            "turns": turns,
            "script": [*script, *["filled"] * _FILL],
        }
        if dice.random() < 0.3:
            case["initial_state"] = dict(dice.sample(sorted(_STATE.items()), dice.randint(1, 3)))
        return case

    def _answer(self) -> Any:
        dice = self._dice
        kind = dice.random()
        if kind < 0.4:
            return dice.choice(_TEXTS)
        if kind < 0.45:
            return []
        answer: list[Any] = [self._call() for _ in range(dice.choice((1, 1, 1, 2, 2, 3)))]
        answer = next(([call] for call in answer if call in _FAILING), answer)
        if dice.random() < 0.2:
            answer.insert(0, [{"text": dice.choice(_TEXTS) or "x"}, None])
        return answer

    def _call(self) -> list[Any]:
        dice = self._dice
        kind = dice.random()
        if self._agents and kind < 0.35:
            name = dice.choice((*self._agents, *self._agents, "nobody", "user"))
            return ["transfer_to_agent", {"agent_name": name}]
        if self._calls and kind < 0.9:
            name, arguments = dice.choice(self._calls)
            return [name, dict(arguments)]
        strange: Sequence[tuple[str, Mapping[str, Any]]] = (
            ("no_such", {}), ("no_such", {"a": [1, {"b": None}]}), ("transfer_to_agent", {}), ("exit_loop", {}),
            ("transfer_to_agent", {"agent_name": "nobody"}), ("transfer_to_agent", {"agent_name": "x", "why": 1}),
        )  # fmt: skip
        name, arguments = dice.choice(strange)
        return [name, dict(arguments)]


_STATE: Mapping[str, Any] = {
    "current_document": "D", "criticism": None, "generated_code": "C", "review_comments": 3, "sunday": True,
    "visits": 4, "steps": ["s"], "begun": "B", "lifted": 2, "opened": "O", "user:caller_name": "Bo", "app:stock": [1],
    "story": "S", "rolls": [6], "last_answer": "See you.",
}  # fmt: skip


def _late_result(name: str, dice: random.Random) -> dict[str, Any]:
    response = dice.choice(({"status": "approved"}, {"result": None}, {}))
    parts: list[dict[str, Any]] = [{"function_response": {"name": name, "response": response}}]
    return {"role": "user", "parts": parts}
