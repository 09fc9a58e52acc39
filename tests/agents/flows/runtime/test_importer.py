from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.flows.runtime import FlowRuntime, gen
from tests.agents.flows.runtime.support import Call, Core, write

VALUE = {
    "functions/values.py": """
        VALUE = "global"


        def values(conv: Conversation):
            return "utility module"
    """,
    "functions/calendar.py": """
        def calendar(conv: Conversation):
            return "project's"
    """,
    "flows/booking/functions/inside.py": """
        INSIDE = "flow"


        def inside(conv: Conversation, flow: Flow):
            return INSIDE
    """,
    "flows/booking/function_steps/entry.py": """
        def _private():
            return "private"


        def entry(conv: Conversation, flow: Flow):
            flow.goto_step("Next", "label")
    """,
}

NAMES = """
    SMSIntegrationNotFound SMSMissingAssistantAccess MissingTemplate TTSVoice CustomVoice ElevenLabsVoice RimeVoice
    GoogleVoice EmotionKindValue EmotionIntensityValue Emotion EmotionIntensity EmotionKind CartesiaVoice
    PlayHTVoice MinimaxVoice HumeVoice XaiVoice GradiumVoice HamsaVoice GoogleGeminiVoice GoogleGeminiTtsModel
    VoiceType VoiceWeighting Variant State Conversation MetricEvent FunctionExecutor ApiIntegrations ApiExecutor
    ConnectorExecutor Integrations MissingHandoff FlowTransition Entities HandoffConfig Handoff ApiIntegrationData
    ASRBiasing ReadOnlyDict TranslationReplacementProxy RealtimeConfig SupportedLanguageCodes Transition
    StepTransition AgenticDialConfig AgenticDialData MessageToParent MessageToChild Flow FlowFunctionExecutor
    AgenticDial Destination Destinations Attachment WebchatInterface ChatCallAction Clock Utils ConversationLogger
    CxOne CxOneError CxOneMissingContactId CxOneSecretError CxOneSignalError CxOneTokenError ExternalEvents
    SMSReceived AgentResponse UserInput LineMemory Memory VerifiedContext ContactJourney ContactMetadata
    OutboundCampaign OutboundContact StepAttempt InvalidInput MissingAccess SecretNotFound OutgoingSMS
    OutgoingSMSTemplate SMSClientFailure SMSCredentials SMSTemplate Address func_parameter func_description
    func_latency_control
"""


@pytest.mark.parametrize(
    ("statement", "expression", "expected"),
    [
        ("from functions.values import VALUE", "VALUE", "global"),
        ("from values import VALUE", "VALUE", "global"),
        ("from .values import VALUE", "VALUE", "global"),
        ("from . import values", "values.VALUE", "global"),
        ("from functions import values", "values.VALUE", "global"),
        ("import functions.values", "functions.values.VALUE", "global"),
        ("import functions.values as v", "v.VALUE", "global"),
        ("import values", "values.VALUE", "global"),
        ("from flows.booking.functions.inside import INSIDE", "INSIDE", "flow"),
        ("from functions.flow_2d90b044.inside import INSIDE", "INSIDE", "flow"),
        ("from flows.booking.function_steps.entry import _private", "_private()", "private"),
        ("import calendar", "calendar.month_name[1]", "January"),
        ("import json, os.path", "json.dumps(os.path.join('a', 'b'))", '"a/b"'),
        ("from imports import *", "Conversation.__name__", "Conversation"),
        ("from _gen.sms import SMSTemplate", "SMSTemplate.__name__", "SMSTemplate"),
        ("import _gen", "_gen.Flow.__name__", "Flow"),
        ("from polyai.voice import ElevenLabsVoice", "ElevenLabsVoice.__name__", "ElevenLabsVoice"),
        ("from polyai.webchat import ChatCallAction", "ChatCallAction.__name__", "ChatCallAction"),
        ("import plog", "plog.__name__.rpartition('.')[2]", "plog"),
    ],
)
@pytest.mark.parametrize("place", ["top", "inside"])
def test_import_forms(tmp_path: Path, statement: str, expression: str, expected: str, place: str) -> None:
    top, inside = (statement, "pass") if place == "top" else ("", statement)
    if "*" in statement:
        top, inside = statement, "pass"
    body = f"\n{top}\n\ndef f(conv: Conversation):\n    {inside}\n    return {expression}\n"
    answer = Call(write(tmp_path, {**VALUE, "functions/f.py": body})).run("f")
    assert (answer["error"], answer["returned"]) == (None, expected)


def test_a_flow_imports_from_its_own_folder(tmp_path: Path) -> None:
    imports = "\nfrom inside import INSIDE\nfrom .inside import INSIDE as again\n"
    body = imports + "\ndef f(conv, flow):\n    return INSIDE + again\n"
    write(tmp_path, {**VALUE, "flows/booking/functions/f.py": body})
    assert Call(tmp_path).run("f", kind="flow", flow="Booking")["returned"] == "flowflow"


def test_two_projects_share_nothing(tmp_path: Path) -> None:
    calls = []
    for name in ("one", "two"):
        root = write(tmp_path / name, {
            "functions/shared.py": f"NAME = '{name}'\n\ndef shared(conv):\n    return NAME\n",
            "functions/f.py": "from shared import NAME\n\ndef f(conv):\n    import functions.shared\n"
                              "    return NAME + functions.shared.NAME\n",
        })  # fmt: skip
        calls.append(Call(root))
    assert [call.run("f")["returned"] for call in calls] == ["oneone", "twotwo"]


def test_the_project_s_own_stubs_are_shadowed(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"_gen/__init__.py": "raise RuntimeError('stub')", "functions/f.py": "\ndef f(conv):\n    return 'ok'\n"},
    )
    assert Call(tmp_path).run("f")["returned"] == "ok"


def test_nothing_is_written_into_the_project(tmp_path: Path) -> None:
    FlowRuntime(write(tmp_path, VALUE))
    assert not list(tmp_path.rglob("*.pyc"))


def test_gen_offers_every_name_of_the_format() -> None:
    assert set(NAMES.split()) <= set(gen.__all__)
    assert gen.__all__ == sorted(gen.__all__)
    assert all(hasattr(gen, name) for name in gen.__all__)


# The catalog ------------------------------------------------------------------------------------------------------


def test_functions_are_described(tmp_path: Path) -> None:
    write(tmp_path, {
        **VALUE,
        "functions/start_function.py": "\ndef start_function(conv: Conversation):\n    pass\n",
        "flows/booking/functions/size_given.py": '''

@func_description("When a size is given.")
@func_parameter("size", "How many")
@func_latency_control(delay_before_responses_start=1, delay_responses=[("One moment.", 2)])
def size_given(conv: Conversation, flow: Flow, size: int, vegan: bool, name: str, price: float, odd):
    return ""
''',
    })  # fmt: skip
    functions = {entry["name"]: entry for entry in Call(tmp_path).handle({"op": "describe"})["functions"]}
    assert {name: entry["kind"] for name, entry in functions.items()} == {
        "values": "global", "calendar": "global", "start_function": "start", "inside": "flow", "size_given": "flow",
        "entry": "step",
    }  # fmt: skip
    described = functions["size_given"]
    assert (described["flow"], described["file"]) == ("booking", "flows/booking/functions/size_given.py")
    assert described["description"] == "When a size is given."
    assert [parameter["type"] for parameter in described["parameters"]] == [
        "integer", "boolean", "string", "number", None
    ]  # fmt: skip
    assert described["parameters"][0]["description"] == "How many"
    assert described["latency"] == {"delay_before_start": 1, "silence_after_each": 0,
                                    "responses": [["One moment.", 2]], "randomize": False}  # fmt: skip
    assert functions["entry"]["parameters"] == []


@pytest.mark.parametrize(
    ("body", "error", "line"),
    [
        ("\nx = 1 +\n", "SyntaxError", 3),
        ("\nimport no_such_module\n", "ModuleNotFoundError", 3),
        ("\nfrom values import MISSING\n", "ImportError", 3),
        ("\nimport sys\nsys.exit(1)\n", "SystemExit", 4),
        ("\nx = undefined\n", "NameError", 3),
        ("\ndef other(conv):\n    pass\n", "LookupError", None),
    ],
)
def test_a_module_that_fails_breaks_only_its_own_function(
    tmp_path: Path, body: str, error: str, line: int | None
) -> None:
    call = Call(write(tmp_path, {**VALUE, "functions/broken.py": body}))
    functions = {entry["name"]: entry["error"] for entry in call.handle({"op": "describe"})["functions"]}
    found = functions.pop("broken")
    assert (found["type"], found["file"], found["line"]) == (error, "functions/broken.py", line)
    assert not any(functions.values())
    answer = call.run("broken")
    assert answer["error"]["type"] == "FunctionNotImported"
    assert error in answer["error"]["message"]
    assert call.run("values")["returned"] == "utility module"


def test_a_module_that_never_ends_is_given_up(tmp_path: Path) -> None:
    write(tmp_path, {"functions/endless.py": "while True:\n    pass\n"})
    session = FlowRuntime(tmp_path, import_limit=0.05).open({}, {}, Core())
    assert session.handle({"op": "describe"})["functions"][0]["error"]["type"] == "ImportTookTooLong"


# Calling each other -----------------------------------------------------------------------------------------------


def test_functions_call_each_other(tmp_path: Path) -> None:
    write(tmp_path, {
        **VALUE,
        "functions/add.py": "\ndef add(conv: Conversation, a: int, b: int):\n    conv.say('added')\n    return a + b\n",
        "functions/broken.py": "x = undefined\n",
        "flows/booking/functions/number.py":
            "\ndef number(conv: Conversation, flow: Flow, n: int):\n"
            "    flow.goto_step(f'{flow.current_step} {n}')\n    return n\n",
        "flows/booking/functions/f.py": '''
def f(conv: Conversation, flow: Flow):
    seen = [conv.functions.add(1, b=2), conv.functions.add(conv, 3, 4), flow.functions.number(5),
            flow.functions.number(conv, flow, 6), flow.functions.number(n=7), flow.functions.number(conv, n=8)]
    try:
        conv.functions.broken()
    except ImportError as error:
        seen.append(type(error).__name__)
    return seen + [hasattr(conv.functions, 'missing')]
''',
    })  # fmt: skip
    answer = Call(tmp_path).run("f", kind="flow", flow="Booking", current_flow="Booking", current_step="Size")
    assert answer["error"] is None
    assert answer["returned"] == [3, 7, 5, 6, 7, 8, "FunctionNotImported", False]
    assert (answer["effects"]["say"], answer["effects"]["goto_step"]) == ("added", "Size 8")
