from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from callagent.workers.protocol import AskFailed
from tests.agents.flows.runtime.support import Call, Core, call_of, write


@pytest.fixture
def make(tmp_path: Path) -> Any:
    return call_of(tmp_path)


# Returns and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "kind", "returned"),
    [
        ("return 'text'", "str", "text"),
        ("return ''", "str", ""),
        ("return", "none", None),
        ("return {}", "dict", {}),
        ("return {'utterance': 'hi', 'transition': None, 3: (1, {2})}", "dict",
         {"utterance": "hi", "transition": None, "3": [1, [2]]}),
        ("return True", "other", True),
        ("return [1]", "other", [1]),
    ],
)  # fmt: skip
def test_what_a_function_returns(make: Any, body: str, kind: str, returned: Any) -> None:
    answer = make(body).run("f")
    assert (answer["returned_kind"], answer["returned"], answer["error"]) == (kind, returned, None)


def test_an_exception_is_reported_and_its_effects_stand(make: Any) -> None:
    answer = make("conv.state.reached = 1\nconv.say('so far')\nraise KeyError('gone')").run("f")
    assert (answer["error"]["type"], answer["error"]["message"]) == ("KeyError", "'gone'")
    assert "in f\n" in answer["error"]["traceback"]
    assert "session.py" not in answer["error"]["traceback"]
    assert answer["effects"]["say"] == "so far"
    assert answer["state"] == {"reached": 1}
    assert answer["logs"][-1]["level"] == "error"


def test_a_function_that_does_not_exist_is_an_error(make: Any) -> None:
    answer = make("pass").run("other", kind="flow", flow="Booking")
    assert answer["error"]["message"] == "the project has no flow function 'other' in flow 'Booking'"


def test_an_unknown_request_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="unknown request 'fly'"):
        make("pass").session.handle({"op": "fly"})


# State ------------------------------------------------------------------------------------------------------------


def test_state_changes_are_told(make: Any) -> None:
    call = make(
        """
        if conv.state.n is None:
            conv.state.n, conv.state.list, conv.state.gone = 1, [1], True
        else:
            conv.state.list.append(2)
            del conv.state['gone']
            conv.state['new'] = conv.state.get('n')
        """
    )
    first = call.run("f")["state_changes"]
    assert first == {"added": {"n": 1, "list": [1], "gone": True}, "updated": {}, "removed": []}
    second = call.run("f")
    assert second["state_changes"] == {"added": {"new": 1}, "updated": {"list": [1, 2]}, "removed": ["gone"]}
    assert sorted(second["checkpoint"]) == ["state:gone", "state:list", "state:new"]
    assert second["checkpoint"]["state:gone"] is None


def test_unchanged_state_is_not_sent_again(make: Any) -> None:
    call = make("conv.state.n = [1, 'two', {'three': 3}]")
    assert list(call.run("f")["checkpoint"]) == ["state:n", "session"]
    assert call.run("f")["checkpoint"] == {}


def test_a_missing_attribute_is_none_and_a_missing_item_an_error(make: Any) -> None:
    answer = make("assert conv.state.x is None and hasattr(conv.state, 'x')\nreturn conv.state['x']").run("f")
    assert answer["error"]["type"] == "KeyError"


def test_live_objects_survive_a_replacement(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "functions/models.py": """
                from dataclasses import dataclass
                from zoneinfo import ZoneInfo
                import datetime


                @dataclass
                class Booking:
                    size: int


                def models(conv: Conversation):
                    return "utility module"
            """,
            "functions/keep.py": """
                from models import Booking, ZoneInfo, datetime


                def keep(conv: Conversation):
                    conv.state.booking = Booking(4)
                    conv.state.at = datetime.datetime(2025, 1, 2, tzinfo=ZoneInfo("Europe/Berlin"))
                    conv.state[7] = "odd key"
                    conv.knowledge_base.disable_topics(["Parking"])
            """,
            "functions/show.py": """
                from functions.models import Booking


                def show(conv: Conversation):
                    assert conv.state[7] == "odd key"
                    assert conv.knowledge_base.disabled_topics == ["Parking"]
                    return f"{conv.state.booking == Booking(4)} {conv.state.at.tzinfo}"
            """,
        },
    )
    call = Call(tmp_path)
    answer = call.run("keep")
    assert answer["state"] == {"booking": {"size": 4}, "at": "2025-01-02T00:00:00+01:00", "7": "odd key"}
    assert answer["effects"]["disabled_topics"] == ["Parking"]
    call.replace()
    assert call.run("show")["returned"] == "True Europe/Berlin"


def test_what_cannot_be_pickled_is_named_once_and_the_rest_kept(make: Any) -> None:
    call = make("conv.state.good = 1\nconv.state.bad = lambda: None")
    answer = call.run("f")
    assert "state key 'bad' cannot be kept" in answer["logs"][0]["content"]
    assert call.run("f")["logs"] == []
    assert "state:good" in call.checkpoint
    assert "state:bad" not in call.checkpoint


def test_the_core_sets_state(make: Any) -> None:
    call = make("return conv.state.size")
    answer = call.handle({"op": "set_state", "values": {"size": 4}})
    assert answer["state_changes"]["added"] == {"size": 4}
    assert call.run("f")["returned"] == 4
    assert call.handle({"op": "set_state"})["state"] == {"size": 4}


# conv: reading ----------------------------------------------------------------------------------------------------


def test_the_snapshot_is_read(make: Any) -> None:
    call = make(
        """
        assert conv.id == 'c1' and conv.env == 'live' and conv.caller_number == '+15550142'
        assert conv.callee_number is None
        assert conv.sip_headers == {'X-Language': 'de'} and conv.current_flow == 'F' and conv.current_step == 'S'
        assert conv.variant_name == 'a' and conv.variant.phone == '1' and conv.variant.missing is None
        assert conv.variants['b'].get('phone') == '2'
        assert [e.to_string() for e in conv.history] == ['Agent: hello', 'User: ']
        assert conv.entities.phone.value == '5' and 'phone' in conv.entities and conv.entities.missing is None
        assert conv.entities.bare.value == 'x' and conv.transcript_alternatives == ['a', 'b']
        assert conv.real_time_config.get('open', False) and conv.memory.get('x') is None and len(conv.memory) == 0
        assert conv.sms_templates['t'].phone_number == '+1' and conv.handoffs['h'].is_default
        assert conv.translations.hello == 'Hallo' and conv._analytics_events == []
        assert conv.metric_events[0].name == 'QA' and conv.project_id == 'p' and conv.state.missing is None
        return 'read'
        """,
        project_id="p",
    )
    answer = call.run(
        "f",
        id="c1", env="live", caller_number="+15550142", sip_headers={"X-Language": "de"}, current_flow="F",
        current_step="S", variant_name="a", variants={"a": {"phone": "1"}, "b": {"phone": "2"}}, language="de-DE",
        history=[{"role": "agent", "text": "hello"}, {"role": "user", "text": ""}],
        entities={"phone": {"value": "5", "type": "phone_number", "unknown": 1}, "bare": "x"},
        transcript_alternatives=["a", "b"], real_time_config={"open": True},
        sms_templates={"t": {"content": "x", "phone_number": "+1"}}, handoffs={"h": {"is_default": True}},
        translations={"hello": {"en": "Hello", "de": "Hallo"}}, metric_events=[{"name": "QA", "value": "Parking"}],
    )  # fmt: skip
    assert answer["error"] is None
    assert answer["returned"] == "read"


def test_an_empty_snapshot_is_enough(make: Any) -> None:
    call = make(
        "return f'{conv.variant.x} {bool(conv.variant)} {conv.sip_headers} {conv.caller_number} {conv.history}'"
    )
    assert call.run("f")["returned"] == "None False {} None []"


def test_absent_keys_keep_their_value(make: Any) -> None:
    call = make("return conv.env + conv.id")
    call.run("f", env="live", id="c1")
    assert call.run("f", id="c2")["returned"] == "livec2"


def test_real_time_config_is_read_only(make: Any) -> None:
    assert make("conv.real_time_config['x'] = 1").run("f")["error"]["type"] == "TypeError"


def test_the_clock_may_be_pinned(make: Any) -> None:
    call = make("return conv.clock.now().isoformat() + ' ' + str(conv.clock.today())",
                now="2025-03-01T23:30:00", timezone="Europe/Berlin")  # fmt: skip
    assert call.run("f")["returned"] == "2025-03-02T00:30:00+01:00 2025-03-02"
    assert datetime.date.fromisoformat(make("return str(conv.clock.today())").run("f")["returned"])


# conv: acting -----------------------------------------------------------------------------------------------------


def test_effects_are_collected_and_the_last_one_wins(make: Any) -> None:
    call = make(
        """
        conv.say('one')
        conv.say('two')
        conv.goto_flow('A')
        conv.goto_flow('B')
        conv.exit_flow()
        conv.set_language('de-DE')
        conv.set_variant('b')
        conv.set_variant('unknown')
        conv.set_voice(ElevenLabsVoice('v1', stability=0.5))
        conv.set_asr_biasing(keywords=['x'])
        conv.set_background_track('office', loudness=-50)
        conv.send_sms('+1', '+2', 'text')
        conv.send_sms_template('+1', 't')
        conv.send_email('a@b.c', 'body')
        conv.discard_recording()
        return f'{conv.variant.name} {conv.language}'
        """
    )
    conv: dict[str, Any] = {"variants": {"a": {"name": "A"}, "b": {"name": "B"}}, "variant_name": "a",
            "current_flow": "F", "sms_templates": {"t": {"content": "x", "phone_number": "+9"}}}  # fmt: skip
    answer = call.run("f", **conv)
    effects = answer["effects"]
    assert answer["returned"] == "B de-DE"
    assert (effects["say"], effects["goto_flow"], effects["exit_flow"]) == ("two", "B", True)
    assert (effects["language"], effects["variant"]) == ("de-DE", "b")
    assert effects["voice"] == {"provider": "elevenlabs", "provider_voice_id": "v1",
                                "config": {"stability": 0.5, "model_id": "eleven_turbo_v2_5"}}  # fmt: skip
    assert effects["asr_biasing"] == {"keywords": ["x"], "custom_biases": {}}
    assert effects["background_track"] == {"name": "office", "loudness": -50}
    assert [sms["kind"] for sms in effects["sms"]] == ["text", "template"]
    assert effects["sms"][1]["from_number"] == "+9"
    assert effects["emails"] == [{"to": "a@b.c", "subject": "", "body": "body"}]
    assert effects["discard_recording"]
    assert "no variant 'unknown'" in answer["logs"][0]["content"]


def test_effects_do_not_outlive_their_run(make: Any) -> None:
    call = make("conv.state.n = (conv.state.n or 0) + 1\nif conv.state.n == 1:\n    conv.say('once')")
    assert call.run("f")["effects"]["say"] == "once"
    assert call.run("f")["effects"]["say"] is None


def test_exit_flow_outside_of_a_flow_does_nothing(make: Any) -> None:
    answer = make("conv.exit_flow()").run("f", current_flow=None)
    assert not answer["effects"]["exit_flow"]
    assert answer["logs"][0]["level"] == "warning"


HANDOFFS = {"T1 Skill": {"is_default": True, "sip_headers": {"X-A": "1", "X-B": "2"}}, "Desk": {}}


@pytest.mark.parametrize(("asked", "found"), [("Desk", "Desk"), ("desk", "Desk"), ("default", "T1 Skill")])
def test_a_handoff_is_found(make: Any, asked: str, found: str) -> None:
    effects = make(f"return conv.call_handoff(destination='{asked}')").run("f", handoffs=HANDOFFS)["effects"]
    assert effects["handoff"]["destination"] == found
    assert effects["handoff"]["reason"] == asked


def test_handoff_headers_are_merged(make: Any) -> None:
    call = make("conv.call_handoff('T1 Skill', 'why', 'bye', {'X-B': 3}, route='+1')")
    assert call.run("f", handoffs=HANDOFFS)["effects"]["handoff"] == {
        "destination": "T1 Skill", "reason": "why", "utterance": "bye", "sip_headers": {"X-A": "1", "X-B": "3"},
        "route": "+1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("conv.call_handoff('nowhere')", "MissingHandoff"),
        ("conv.send_sms_template('+1', 'none')", "MissingTemplate"),
        ("conv.set_asr_biasing(keywords='x')", "ValueError"),
        ("conv.utils.get_secret('none')", "SecretNotFound"),
        ("conv.utils.get_secret('../x')", "InvalidInput"),
        ("conv.api.crm.find()", "AttributeError"),
        ("conv.connectors.crm.find()", "AttributeError"),
        ("conv.no_such_thing()", "AttributeError"),
    ],
)
def test_named_errors(make: Any, body: str, error: str) -> None:
    assert make(body).run("f")["error"]["type"] == error


def test_secrets_come_from_the_context_the_environment_and_the_core(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_ENVIRONMENT", "e")
    core = Core()
    core.secrets["from_file"] = '{"user": "u"}'
    call = make("get = conv.utils.get_secret\nreturn [get('given'), get('FROM_ENVIRONMENT'), get('from_file')['user']]",
                core, secrets={"given": "g"})  # fmt: skip
    assert call.run("f")["returned"] == ["g", "e", "u"]


# Metrics, logs, the model -----------------------------------------------------------------------------------------


def test_metrics_are_asked_for_one_by_one(make: Any) -> None:
    call = make(
        """
        conv.write_metric('A')
        conv.write_metric('A', 1)
        conv.write_metric('B', value='x', write_once=True)
        conv.write_metric('B', value='y', write_once=True)
        conv.write_metric('OLD', write_once=True)
        return [(e.name, e.value) for e in conv.metric_events]
        """
    )
    answer = call.run("f", metric_events=[{"name": "OLD", "value": None}])
    written = [(m["name"], m["value"], m["ask"]) for m in call.core.messages if m["type"] == "metric"]
    assert written == [("A", None, True), ("A", 1, True), ("B", "x", True)]
    assert answer["effects"]["metrics"] == [{"name": n, "value": v} for n, v, _ in written]
    assert answer["returned"][0] == ["OLD", None]
    assert len(answer["returned"]) == 4


def test_logs_are_sent_at_once_and_returned(make: Any) -> None:
    call = make(
        """
        import plog
        conv.log.info('one', is_pii=True, number=5, what=conv.state)
        try:
            1 / 0
        except ZeroDivisionError:
            conv.log.error('two', exc_info=True)
        @plog.tmp_bind(order=7)
        def inner():
            plog.warning('three')
        inner()
        plog.info('four')
        """
    )
    answer = call.run("f")
    first, second, third, fourth = answer["logs"]
    assert (first["content"], first["is_pii"], first["number"], first["what"]) == ("one", True, 5, {})
    assert first["logger"] == "conversation_logger"
    assert first["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in second["traceback"]
    assert third["order"] == 7
    assert "order" not in fourth
    assert [message["content"] for message in call.core.messages] == ["one", "two", "three", "four"]


def test_the_model_is_asked(make: Any) -> None:
    core = Core("plain", '```json\n{"a": 1}\n```', "no json", AskFailed("the model is down"))
    call = make(
        """
        ask = conv.utils.prompt_llm
        seen = [ask('q', show_history=True), ask('q', return_json=True)]
        for _ in range(2):
            try:
                ask('q', return_json=True)
            except ChatCompletionError as error:
                seen.append(str(error))
        return seen
        """,
        core,
    )
    assert call.run("f")["returned"] == ["plain", {"a": 1}, "the model's answer is not JSON: 'no json'",
                                         "the model is down"]  # fmt: skip
    assert core.messages[0] == {"type": "prompt_llm", "prompt": "q", "show_history": True, "return_json": False,
                                "model": "gpt-4o", "ask": True}  # fmt: skip


def test_one_function_cannot_ask_the_model_for_ever(make: Any) -> None:
    call = make("while True:\n    conv.utils.prompt_llm('q')", Core(*["x"] * 100))
    assert call.run("f")["error"]["type"] == "PromptLLMCallLimitError"


def test_entities_are_validated(make: Any) -> None:
    call = make(
        """
        u = conv.utils
        results = [
            u.validate_entity('4', u.NumericConfig(max_inclusive=3)),
            u.validate_entity('3', u.NumericConfig(max_inclusive=3)),
            u.validate_entity('red', u.EnumConfig(allowed_vals={'Red'})),
            u.validate_entity('2025-01-02', u.DateConfig()),
            u.validate_entity('+49 30 1', u.PhoneNumberConfig(regions={'US'})),
            u.validate_entity('', u.FreeTextConfig()),
        ]
        return [[r.is_valid, r.value, r.message] for r in results]
        """
    )
    assert call.run("f")["returned"] == [
        [False, "4", "must be at most 3"], [True, 3, None], [True, "Red", None], [True, "2025-01-02", None],
        [False, "+49 30 1", "is not a phone number"], [False, "", "is empty"],
    ]  # fmt: skip
