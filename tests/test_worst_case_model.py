"""A model that asks a hundred times to be sent where nobody should be, in a project that hands on whatever it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from callagent.agents import Handoff, HandoffFailed, HangUp
from callagent.call import Call, CallServices, CallSettings
from callagent.config import Target
from callagent.server.outbound import TargetRefused, resolve_target
from callagent.speech.scripted import ScriptedRecognizer, ScriptedVoice
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.agents.flows.support import Driven, driven, function, of, write_project
from tests.call.test_call import MemoryStore
from tests.fakes import FakeAgent, FakeLeg, FakeProject, LoudnessActivity

TARGETS = (Target(name="Front Desk", uri="sip:desk@pbx.example"), Target(prefix="+4420"), Target(prefix="+1"))
EVERYWHERE = (TARGETS[0], *(Target(prefix=f"+{digit}") for digit in range(1, 10)))
"""Settings that say no more than that any country may be called."""
PREMIUM = (
    *(f"+1900555{number:04d}" for number in range(15)),
    *(f"+1 (900) 555-{number:04d}" for number in range(5)),
    *(f"+1976555{number:04d}" for number in range(5)),
    *(f"+881{number}12345678" for number in range(5)),
    *(f"+882{number}12345678" for number in range(3)),
    *(f"+979{number}12345678" for number in range(3)),
    *(f"+87812345678{number}" for number in range(2)),
    *(f"+44909879{number:04d}" for number in range(5)),
    *(f"0900123{number:03d}" for number in range(5)),
)
SURCHARGED = (
    # Premium in more than ten countries.
    *("+449098790000", "+33899123456", "+48701234567", "+39899123456", "+34806123456", "+41900123456", "+43900123456"),
    *("+3290012345", "+31900123456", "+46900123456", "+81990123456", "+611900123456", "+1 1 900 555 0123"),
    *("+870773123456", "+8816123456789", "+88299123456", "+883510012345678"),
    *("+18765550123", "+18095550123", "+14735550123", "+12685550123", "+16495550123", "+12845550123", "+17675550123"),
    *("+12129765555", "+1 (310) 976-5555", "+14169765555"),
    *("+491805123456", "+443001234567", "+445511234567", "+447012345678", "+447640123456", "+15005550123"),
    *("611", "32665", "118118", "+118118", "0900123456", "+44 (0)909 879 0000", "\uff0b449098790000"),
    *("tel:+1-900-555-0123", "tel:900-555-0123;phone-context=+1", "tel:+19005550123;ext=1", "tel:911"),
    *("sip:+19005550123@carrier.example;user=phone", "sip:+449098790000@127.0.0.1;user=phone"),
)
INTERNAL = (
    *(f"sip:{user}@{host}" for user in ("root", "admin", "100", "*") for host in ("10.0.0.1", "127.0.0.1", "[::1]")),
    *("sips:pbx.internal", "SIP:100@192.168.1.1", "sip:100@localhost:5061;transport=tcp", "sip:169.254.169.254"),
    *("tel:+442079460000", "tel:911", "http://127.0.0.1:8080/api/calls", "file:///etc/passwd", "ws://localhost/x"),
    *("911", "112", "999", "*72", "#9", "0011", "00442079460000", "desk@pbx.internal", "user:secret@10.0.0.1"),
)
INJECTING = (
    *(f"+442079460000{end}X-Evil: yes{end}" for end in ("\r\n", "\n", "\r", "%0d%0a", "\u2028", "\x00")),
    *("+442079460000?Replaces=abc%3Bto-tag%3D1", "+442079460000;phone-context=evil", "+442079460000@10.0.0.1"),
    *("sip:desk@pbx.example\r\nRefer-To: sip:evil@203.0.113.9", '+44"><sip:evil@203.0.113.9>', "+44,sip:evil@x"),
    *("+442079460000>;method=INVITE", "<sip:evil@203.0.113.9>", "\u202e+4420", "\uff0b442079460000", "+44207946000٠"),
    *("+442079460000\tRoute: <sip:evil@203.0.113.9;lr>", "+" + "4" * 5000, "", " ", "null", "${jndi:ldap://x}"),
)
HOSTILE = (*PREMIUM, *SURCHARGED, *INTERNAL, *INJECTING)


def project(folder: Path) -> Path:
    """`shapes` are the ways in which a function may ask for a handoff."""
    body = """
    if shape == "queued":
        return conv.call_handoff("Front Desk", route=where)
    if shape == "named":
        return {"handoff": {"destination": where, "refer": {"phone_number": where}}}
    if shape == "header":
        return {"handoff": {"destination": "Front Desk", "refer": {"sip_headers": {"Refer-To": where, where: "x"}}}}
    return {"handoff": {"destination": "Elsewhere", "refer": {"phone_number": where}}}
    """
    described = '@func_description("send")\n@func_parameter("where", "anywhere")\n@func_parameter("shape", "how")\n'
    return write_project(
        folder,
        {
            "project.yaml": "project_id: worst\naccount_id: worst\nregion: euw-1\n",
            "config/handoffs.yaml": """
                handoffs:
                  - {name: Front Desk, is_default: true, sip_config: {method: refer, phone_number: "+442079460000"}}
                  - {name: Elsewhere, is_default: false, sip_config: {method: refer, phone_number: "+442079460001"}}
                """,
            "agent_settings/rules.txt": "Send callers anywhere. {{fn:send}}",
            "functions/send.py": function("send", body, ", where: str, shape: str", decorators=described),
        },
    )


async def asked_for(agent: Driven) -> list[Handoff]:
    """What the agent makes of a hundred of the model's wishes, one a turn."""
    handoffs: list[Handoff] = []
    for number in range(len(HOSTILE)):
        handoffs += of(Handoff, await agent.says(f"wish {number}"))
    return handoffs


def play(handoffs: list[Handoff]) -> tuple[FakeLeg, int]:
    """One call whose agent wants each of them, one after another, through the settings' own choke point."""
    wishes = iter(handoffs)

    async def next_wish(turn: Any) -> Any:
        yield next(wishes, HangUp())

    agent = FakeAgent([next_wish] * (len(handoffs) + 1), greeting=[next(wishes)])

    def make_turn_manager(emit: Any) -> TurnManager:
        return TurnManager(
            CallerInput(ScriptedRecognizer([]), LoudnessActivity()), ScriptedVoice(), emit, TurnSettings()
        )

    async def scene() -> FakeLeg:
        leg = FakeLeg()
        services = CallServices(MemoryStore(), lambda handoff: resolve_target(handoff, TARGETS))  # type: ignore[arg-type]
        await Call(
            leg, FakeProject(agent), make_turn_manager, services, CallSettings(longest_call=100_000, transfers=100_000)
        ).run()
        return leg

    return run(scene()), sum(isinstance(turn, HandoffFailed) for turn in agent.turns)


def test_there_are_a_hundred_of_them() -> None:
    assert len(set(HOSTILE)) >= 100


async def wishes_of_the_model(folder: Path) -> list[Handoff]:
    shapes = ("queued", "named", "header", "elsewhere")
    found: list[Handoff] = []
    for shape in shapes:
        entries = [{"calls": [{"name": "send", "arguments": {"where": where, "shape": shape}}]} for where in HOSTILE]
        answered = [entry for call in entries for entry in (call, {"text": "I will try."})]
        async with driven(project(folder / shape), *answered) as agent:
            await agent.start()
            found += await asked_for(agent)
    return found


async def test_whatever_the_model_says_leads_to_a_place_of_the_settings_or_nowhere(tmp_path: Path) -> None:
    handoffs = await wishes_of_the_model(tmp_path)
    assert len(handoffs) >= 100
    reached = set()
    for handoff in handoffs:
        try:
            target = resolve_target(handoff, TARGETS)
        except TargetRefused:
            continue
        reached.add(target.uri)
        assert all(character.isprintable() for text in target.headers.values() for character in text)
    assert reached <= {"sip:desk@pbx.example"}


def test_prefixes_of_all_countries_let_none_of_them_pass() -> None:
    numbers = (*PREMIUM, *SURCHARGED)
    passed = []
    for number in numbers:
        try:
            passed.append(resolve_target(Handoff("Elsewhere", "asked", "refer", number), EVERYWHERE).uri)
        except TargetRefused:
            continue
    assert passed == []


def test_a_call_transfers_to_none_of_them() -> None:
    wishes = [Handoff("Elsewhere", "asked", "refer", where) for where in HOSTILE]
    wishes += [Handoff(where, "asked", "refer", where) for where in HOSTILE if where.strip()]
    wishes += [Handoff("Front Desk", "asked", "refer", None, {"X-Note": f"a\r\nRoute: {where}"}) for where in HOSTILE]
    wishes += [Handoff("Front Desk", "asked", "refer", None, {where: "x"}) for where in INJECTING if where != "null"]
    leg, failed = play(wishes)
    assert [did for did in leg.did if did.startswith("transfer")] == []
    assert failed == len(wishes)
