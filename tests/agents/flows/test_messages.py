"""Text messages and e-mails: sent after the turn, kept in the record, never in the way of the call."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from pathlib import Path

import pytest

from callagent.agents import LimitReached
from callagent.agents.flows import FlowSettings
from callagent.agents.flows.messages import (
    MAX_MESSAGES,
    MAX_REFUSED,
    MessageFailed,
    MessageRules,
    OptOuts,
    Outbox,
    OutgoingMessage,
)
from callagent.call_info import EndReason
from callagent.testing.virtual_time import run
from tests.agents.flows.support import call_info, driven, function, of, words, write_project

TEMPLATES = """\
sms_templates:
- name: where
  text: 'Come to {{vrbl:place}}, $when, ${variant_town}.'
  env_phone_numbers: {sandbox: '+1111', live: '+2222'}
"""
VARIANTS = """\
variants: [{name: North, is_default: true}]
attributes: [{name: town, values: {North: Oslo}}]
"""


class Sender:
    """Fails as often as it is told, then takes everything."""

    def __init__(self, failures: int = 0, *, temporary: bool = True) -> None:
        self.sent: list[OutgoingMessage] = []
        self.tries = 0
        self._failures = failures
        self._temporary = temporary

    async def send(self, message: OutgoingMessage) -> str:
        self.tries += 1
        if self.tries <= self._failures:
            raise MessageFailed("busy", temporary=self._temporary)
        self.sent.append(message)
        return f"id-{len(self.sent)}"


def message(text: str = "Hello", to: str = "+49") -> OutgoingMessage:
    return OutgoingMessage("sms", to, "+1", text)


def project(tmp_path: Path, body: str, **files: str) -> Path:
    rest = {name.replace("__", "/") + ".py": text for name, text in files.items()}
    return write_project(
        tmp_path,
        {
            "agent_settings/rules.txt": "{{fn:act}} {{twilio_sms:where}}",
            "config/sms_templates.yaml": TEMPLATES,
            "config/variant_attributes.yaml": VARIANTS,
            "functions/act.py": function("act", body),
            **rest,
        },
    )


ACT = ({"calls": [{"name": "act"}]}, {"text": "Done."})


async def test_a_template_is_rendered_with_the_state_at_the_end_of_the_turn(tmp_path: Path):
    body = """
        conv.state.place = "the pier"
        conv.send_sms_template("+4930555", "where")
        conv.state.when = "at nine"
    """
    async with driven(project(tmp_path, body), *ACT) as agent:
        await agent.start()
        await agent.says("text me")
        (sent,) = agent.agent.record().messages
    assert (sent["to"], sent["from"], sent["template"]) == ("+4930555", "+2222", "where")
    assert sent["text"] == "Come to the pier, at nine, Oslo."
    assert (sent["kind"], sent["status"]) == ("sms", "recorded")


async def test_the_template_tool_texts_the_caller(tmp_path: Path):
    script = ({"calls": [{"name": "send_sms_where"}]}, {"text": "On its way."})
    async with driven(project(tmp_path, "pass"), *script) as agent:
        await agent.start()
        assert words(await agent.says("text me")) == ["On its way."]
        assert [sent["to"] for sent in agent.agent.record().messages] == ["+4930555"]


async def test_the_template_tool_tells_the_model_when_the_number_is_withheld(tmp_path: Path):
    script = ({"calls": [{"name": "send_sms_where"}]}, {"text": "I cannot text you."})
    async with driven(project(tmp_path, "pass"), *script, info=call_info(caller=None)) as agent:
        await agent.start()
        await agent.says("text me")
        assert "cannot be sent" in agent.model.messages()[-1]["content"]
        assert not agent.agent.record().messages


async def test_a_function_that_raises_has_sent_what_it_sent_before(tmp_path: Path):
    body = """
        conv.send_sms("+4930555", "+1", "Before")
        raise ValueError("after")
    """
    async with driven(project(tmp_path, body), *ACT) as agent:
        await agent.start()
        await agent.says("go")
        assert [sent["text"] for sent in agent.agent.record().messages] == ["Before"]


async def test_messages_of_the_end_function_go_out_too(tmp_path: Path):
    ending = function("end_function", 'conv.send_email("a@b.example", "Bye", "Your call")', decorators="\n")
    root = project(tmp_path, "pass", functions__end_function=ending)
    sender = Sender()
    async with driven(
        root, settings=FlowSettings(senders={"email": sender}, message_rules=MessageRules(recipients=("@b.example",)))
    ) as agent:
        await agent.start()
        assert await agent.agent.end(EndReason.CALLER_HANGUP, 1)
        (sent,) = agent.agent.record().messages
    assert (sent["kind"], sent["status"], sent["subject"]) == ("email", "sent", "Your call")
    assert [mail.text for mail in sender.sent] == ["Bye"]


async def test_the_end_function_is_not_run_again_once_it_reached_its_end(tmp_path: Path):
    ending = function("end_function", 'conv.write_metric("ENDED")', decorators="\n")
    async with driven(project(tmp_path, "pass", functions__end_function=ending)) as agent:
        await agent.start()
        assert await agent.agent.end(EndReason.CALLER_HANGUP, 1)
        assert await agent.agent.end(EndReason.CALLER_HANGUP, 2)
        assert agent.written == [("ENDED", None)]


def test_a_provider_that_is_busy_is_asked_again_after_growing_pauses():
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        sender = Sender(failures=3)
        outbox = Outbox({"sms": sender})
        outbox.post(message())
        began = loop.time()
        await outbox.close(60)
        assert loop.time() - began == 4
        assert (sender.tries, outbox.sent[0]["status"], outbox.sent[0]["detail"]) == (4, "sent", "id-1")

    run(scene())


def test_a_refused_message_is_not_tried_again():
    async def scene() -> None:
        sender = Sender(failures=9, temporary=False)
        outbox = Outbox({"sms": sender})
        outbox.post(message(), retries=5)
        await outbox.close(60)
        assert (sender.tries, outbox.sent[0]["status"], outbox.sent[0]["detail"]) == (1, "failed", "busy")

    run(scene())


def test_a_message_that_is_still_being_sent_when_the_time_is_over_has_failed():
    async def scene() -> None:
        outbox = Outbox({"sms": Sender(failures=99)})
        outbox.post(message(), retries=5)
        await outbox.close(2)
        assert outbox.sent[0]["status"] == "failed"

    run(scene())


def test_one_call_sends_so_many_messages_and_no_more():
    async def scene() -> None:
        outbox = Outbox()
        for _ in range(MAX_MESSAGES + 1):
            outbox.post(message())
        outbox.post(message(to=""))
        assert len(outbox.sent) == MAX_MESSAGES

    run(scene())


def test_a_message_to_nobody_has_failed():
    outbox = Outbox({"sms": Sender()})
    outbox.post(message(to=""))
    assert outbox.sent[0]["status"] == "failed"


# What a call may send, and to whom ----------------------------------------------------------------------------------


async def test_others_than_the_caller_are_not_written_to_and_the_model_is_told(tmp_path: Path):
    body = """
        conv.send_sms("+49 (30) 555", "+1", "To the caller")
        conv.send_sms("+442079460000", "+1", "To somebody")
        conv.send_sms("+442079460000", "+1", "To somebody again")
        conv.send_email("a@b.example", "To an address")
        return "It is sent."
    """
    sender = Sender()
    settings = FlowSettings(senders={"sms": sender, "email": sender})
    async with driven(project(tmp_path, body), *ACT, settings=settings) as agent:
        await agent.start()
        reached = of(LimitReached, await agent.says("text everybody"))
        told = agent.model.messages()[-1]["content"]
        await agent.agent.close()
        record = agent.agent.record()
    assert [message.text for message in sender.sent] == ["To the caller"]
    assert [each.limit for each in reached] == ["message_recipients"] * 2
    assert told.startswith("It is sent.")
    assert told.count("Error: the text message to +442079460000 was not sent") == 1
    assert "Error: the e-mail to a@b.example was not sent" in told
    assert "messages.recipients" in told
    assert [entry["status"] for entry in record.messages] == ["refused", "refused", "refused", "sent"]
    assert record.limits_reached == []


async def test_a_call_sends_so_many_messages(tmp_path: Path):
    body = """
        for number in range(4):
            conv.send_sms("+4930555", "+1", f"Number {number}")
    """
    sender = Sender()
    settings = FlowSettings(senders={"sms": sender}, message_rules=MessageRules(per_call=3))
    script = (*ACT, {"calls": [{"name": "send_sms_where"}]}, {"text": "I cannot text you."})
    async with driven(project(tmp_path, body), *script, settings=settings) as agent:
        await agent.start()
        first = of(LimitReached, await agent.says("text me"))
        second = of(LimitReached, await agent.says("text me again"))
        told = agent.model.messages()[-1]["content"]
        await agent.agent.close()
    assert [message.text for message in sender.sent] == ["Number 0", "Number 1", "Number 2"]
    assert [each.limit for each in (*first, *second)] == ["messages"] * 2
    assert "limits.messages is 3" in told


async def test_the_model_is_told_of_messages_beyond_what_any_call_may_send(tmp_path: Path):
    body = """
        for number in range(53):
            conv.send_sms("+4930555", "+1", f"Number {number}")
        return "They are sent."
    """
    settings = FlowSettings(senders={"sms": Sender()}, message_rules=MessageRules(per_call=60))
    async with driven(project(tmp_path, body), *ACT, settings=settings) as agent:
        await agent.start()
        reached = of(LimitReached, await agent.says("text me"))
        told = agent.model.messages()[-1]["content"]
        await agent.agent.close()
        record = agent.agent.record()
    assert told.startswith("They are sent.")
    assert f"a call sends at most {MAX_MESSAGES} messages" in told
    assert [each.limit for each in reached] == ["messages"]
    assert Counter(str(entry["status"]) for entry in record.messages) == {"sent": MAX_MESSAGES, "refused": 3}


async def test_refused_messages_take_no_place_of_those_that_may_be_sent(tmp_path: Path):
    body = """
        for number in range(30):
            conv.send_sms("+442079460000", "+1", "To somebody")
        for number in range(45):
            conv.send_sms("+4930555", "+1", f"Number {number}")
    """
    sender = Sender()
    settings = FlowSettings(senders={"sms": sender}, message_rules=MessageRules(per_call=45))
    async with driven(project(tmp_path, body), *ACT, settings=settings) as agent:
        await agent.start()
        await agent.says("text everybody")
        await agent.agent.close()
        record = agent.agent.record()
    assert len(sender.sent) == 45
    assert Counter(str(entry["status"]) for entry in record.messages) == {"sent": 45, "refused": MAX_REFUSED}


async def test_what_the_end_function_may_not_send_is_in_the_record(tmp_path: Path):
    ending = function("end_function", 'conv.send_sms("+442079460000", "+1", "Bye")', decorators="\n")
    async with driven(project(tmp_path, "pass", functions__end_function=ending)) as agent:
        await agent.start()
        assert await agent.agent.end(EndReason.CALLER_HANGUP, 1)
        assert [each.limit for each in agent.agent.record().limits_reached] == ["message_recipients"]


@pytest.mark.parametrize(
    ("to", "allowed"),
    [
        ("+4930555", True),
        ("+49 30/555", False),
        ("tel:+49-30-555", True),
        ("whatsapp:+4930555", True),
        ("+4930556", False),
        ("04930555", False),
        ("+442079460000", True),
        ("ann@example.org", True),
        ("Ann@Example.ORG", True),
        ("bob@example.org", False),
        ("anybody@example.com", True),
        ("evil@example.net,anybody@example.com", False),
        ("evil@example.net anybody@example.com", False),
        ("evil@example.net\r\nBcc: x@example.com", False),
        ("anybody@evil.example.com", False),
        ("@example.com", False),
        ("", False),
    ],
)
def test_who_may_be_written_to(to: str, allowed: bool):
    rules = MessageRules(recipients=("+442079460000", "ann@example.org", "@example.com"))
    assert rules.allows(to, "+4930555") is allowed
    assert MessageRules(recipients=("any",)).allows(to, None)


def test_a_withheld_number_is_nobodys():
    assert not MessageRules().allows("anonymous", None)
    assert not MessageRules().allows("", None)
    assert not MessageRules().allows("alice", "alice")


async def test_in_a_call_of_ours_the_number_that_we_called_is_the_callers_own(tmp_path: Path):
    body = """
        conv.send_sms("+4930111", "+1", "Hello")
        conv.send_sms("+4930555", "+1", "Hello")
    """
    async with driven(project(tmp_path, body), *ACT, info=call_info(direction="outbound")) as agent:
        await agent.start()
        await agent.says("text me")
        sent = [entry["to"] for entry in agent.agent.record().messages if entry["status"] == "recorded"]
    assert sent == ["+4930111"]


ADA = "+1 (555) 000-1111"


@pytest.mark.parametrize("text", ["STOP", " stop.", "Unsubscribe", "QUIT!"])
def test_stop_holds_until_start_and_over_restarts(tmp_path: Path, text: str):
    path = tmp_path / "memory" / "opted_out"
    kept = OptOuts(path)
    assert kept.handle_message(ADA, text)
    assert "+15550001111" in kept
    assert "+15550002222" not in kept
    assert "+15550001111" in OptOuts(path)
    assert "5550001111" not in path.read_text()
    assert OptOuts(path).handle_message("+15550001111", "Start")
    assert "+15550001111" not in OptOuts(path)


WRITTEN = ["+15550001111", "001 555 000 1111", "15550001111", "tel:+1-555-000-1111", "whatsapp:+15550001111", ADA]
OTHERS = ["+15550001112", "0015550001112", "05550001111", "5550001111", "+4915550001111", "", "alice"]


@pytest.mark.parametrize("opted_out", WRITTEN)
def test_an_opt_out_holds_however_the_number_is_written(opted_out: str):
    kept = OptOuts()
    assert kept.handle_message(opted_out, "STOP")
    assert [number for number in (*WRITTEN, *OTHERS) if number in kept] == WRITTEN
    assert kept.handle_message("0015550001111", "START")
    assert not any(number in kept for number in WRITTEN)


def test_opt_outs_that_an_earlier_version_stored_hold(tmp_path: Path):
    path = tmp_path / "opted_out"
    path.write_text("-" + hashlib.sha256(b"+15550001111").hexdigest()[:40] + "\n")
    assert [number for number in (*WRITTEN, *OTHERS) if number in OptOuts(path)] == WRITTEN


@pytest.mark.parametrize("text", ["please stop the car", "HELP", "", "ok"])
def test_other_messages_change_nothing(text: str):
    kept = OptOuts()
    assert not kept.handle_message(ADA, text)
    assert ADA not in kept


def test_a_file_that_cannot_be_written_costs_the_restart_only(tmp_path: Path):
    (tmp_path / "file").write_text("")
    kept = OptOuts(tmp_path / "file" / "opted_out")
    assert kept.handle_message(ADA, "stop")
    assert ADA in kept


async def test_a_message_to_who_opted_out_is_not_sent_and_is_in_the_record():
    class Sender:
        sent: list[str] = []  # noqa: RUF012

        async def send(self, message: OutgoingMessage) -> str:
            self.sent.append(message.to)
            return "id"

    kept, sender = OptOuts(), Sender()
    kept.handle_message(ADA, "STOP")
    outbox = Outbox({"sms": sender, "email": sender}, kept)
    for kind, to in (("sms", "+15550001111"), ("sms", "+15550002222"), ("email", "+15550001111")):
        outbox.post(OutgoingMessage(kind, to, "+15559", "Hello"))
    await outbox.close(5)
    assert [entry["status"] for entry in outbox.sent] == ["opted_out", "sent", "sent"]
    assert sender.sent == ["+15550002222", "+15550001111"]
