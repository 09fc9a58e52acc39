"""Who wrote STOP gets no more text messages; the call does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.flows.senders.opt_outs import OptOuts
from callagent.agents.flows.senders.outbox import Outbox, OutgoingMessage

ADA = "+1 (555) 000-1111"


@pytest.mark.parametrize("text", ["STOP", " stop.", "Unsubscribe", "QUIT!"])
def test_stop_holds_until_start_and_over_restarts(tmp_path: Path, text: str):
    path = tmp_path / "memory" / "opted_out"
    kept = OptOuts(path)
    assert kept.take(ADA, text)
    assert "+15550001111" in kept
    assert "+15550002222" not in kept
    assert "+15550001111" in OptOuts(path)
    assert "5550001111" not in path.read_text()
    assert OptOuts(path).take("+15550001111", "Start")
    assert "+15550001111" not in OptOuts(path)


@pytest.mark.parametrize("text", ["please stop the car", "HELP", "", "ok"])
def test_other_messages_change_nothing(text: str):
    kept = OptOuts()
    assert not kept.take(ADA, text)
    assert ADA not in kept


def test_a_file_that_cannot_be_written_costs_the_restart_only(tmp_path: Path):
    (tmp_path / "file").write_text("")
    kept = OptOuts(tmp_path / "file" / "opted_out")
    assert kept.take(ADA, "stop")
    assert ADA in kept


async def test_a_message_to_who_opted_out_is_not_sent_and_is_in_the_record():
    class Sender:
        sent: list[str] = []  # noqa: RUF012

        async def send(self, message: OutgoingMessage) -> str:
            self.sent.append(message.to)
            return "id"

    kept, sender = OptOuts(), Sender()
    kept.take(ADA, "STOP")
    outbox = Outbox({"sms": sender, "email": sender}, kept)
    for kind, to in (("sms", "+15550001111"), ("sms", "+15550002222"), ("email", "+15550001111")):
        outbox.post(OutgoingMessage(kind, to, "+15559", "Hello"))
    await outbox.close(5)
    assert [entry["status"] for entry in outbox.sent] == ["opted_out", "sent", "sent"]
    assert sender.sent == ["+15550002222", "+15550001111"]
