"""Writes SIPp scenarios: one side of a call as a list of steps, each a message sent or waited for."""

from __future__ import annotations

from pathlib import Path

SDP = """v=0
o=test 1 1 IN IP4 [local_ip]
s=-
c=IN IP4 [media_ip]
t=0 0
m=audio [media_port] RTP/AVP 0 101
a=rtpmap:0 PCMU/8000
a=rtpmap:101 telephone-event/8000
a=ptime:20
"""
_OURS = "sip:+15550100@[local_ip]:[local_port];transport=[transport]"
_THEIRS = "sip:[service]@[remote_ip]:[remote_port]"


class Scenario:
    """Steps are added in their order."""

    def __init__(self, name: str) -> None:
        self._steps = [f'<?xml version="1.0"?>\n<!DOCTYPE scenario SYSTEM "sipp.dtd">\n<scenario name="{name}">']
        self._checks = 0

    def request(
        self, method: str, cseq: int, *headers: str, sdp: bool = False, branch_back: int = 0, tag: str = ""
    ) -> Scenario:
        """`branch_back`: how many steps ago the request was whose branch this one takes. `tag`: the peer's, where it
        is not that of the last response."""
        dialog = cseq > 1 or method == "ACK"
        uri = "[next_url]" if dialog and not branch_back else _THEIRS
        tag = tag or ("[peer_tag_param]" if dialog else "")
        back = f"-{branch_back}" if branch_back else ""
        lines = [
            f"{method} {uri} SIP/2.0",
            f"Via: SIP/2.0/[transport] [local_ip]:[local_port];rport;branch=[branch{back}]",
            "[routes]" if dialog and not branch_back else "",
            f"From: <{_OURS}>;tag=from[call_number]",
            f"To: <{_THEIRS}>{tag}",
            "Call-ID: [call_id]",
            f"CSeq: {cseq} {method}",
            f"Contact: <{_OURS}>",
            "Max-Forwards: 70",
            *headers,
        ]
        return self._send(lines, sdp=sdp, again=method != "ACK")

    def response(self, line: str, *headers: str, tag: str = "", sdp: bool = False) -> Scenario:
        """To the request received last; with `tag` as our own where it began the dialog."""
        way = ["[last_Via:]", "[last_Record-Route:]", f"[last_To:];tag={tag}" if tag else "[last_To:]", "[last_CSeq:]"]
        return self._respond(line, [*way, *headers], sdp=sdp)

    def answer_again(self, tag: str, via: str) -> Scenario:
        """200 of another phone to an INVITE that came by `via`."""
        way = [f"Via:{via}", f"To: <sip:desk@[local_ip]>;tag={tag}", "CSeq: 1 INVITE"]
        return self._respond("200 OK", way, sdp=True)

    def hear(self, what: str, check: str = "", *, optional: bool = False, seconds: float = 10.0) -> Scenario:
        """Wait for a method or a status; `check` is `Header: expression` that it has to match."""
        kind = "response" if what.isdigit() else "request"
        more = ' optional="true"' if optional else f' timeout="{round(seconds * 1000)}"'
        route = ' rrs="true"' if what == "200" else ""
        action = ""
        if check:
            self._checks += 1
            name, _, expression = check.partition(": ")
            action = (
                f'<action><ereg regexp="{expression}" search_in="hdr" header="{name}:" check_it="true" '
                f'assign_to="{self._checks}"/><log message="[${self._checks}]"/></action>'
            )
        return self._step(f'<recv {kind}="{what}"{more}{route}>{action}</recv>')

    def wait(self, seconds: float) -> Scenario:
        return self._step(f'<pause milliseconds="{round(seconds * 1000)}"/>')

    def call(self, *headers: str) -> Scenario:
        """An INVITE, its answer and our ACK."""
        self.request("INVITE", 1, *headers, sdp=True).hear("100", optional=True).hear("180", optional=True)
        return self.hear("200").request("ACK", 1)

    def leave(self, cseq: int) -> Scenario:
        return self.request("BYE", cseq).hear("200")

    def left(self) -> Scenario:
        """The peer hangs up."""
        return self.hear("BYE").response("200 OK")

    def write(self, folder: Path) -> tuple[str, str]:
        """The arguments that make SIPp play it."""
        path = folder / "scenario.xml"
        path.write_text("\n".join([*self._steps, "</scenario>\n"]))
        return "-sf", str(path)

    def _respond(self, line: str, headers: list[str], *, sdp: bool) -> Scenario:
        common = ["[last_From:]", "[last_Call-ID:]", f"Contact: <{_OURS}>"]
        return self._send([f"SIP/2.0 {line}", *headers, *common], sdp=sdp, again=False)

    def _send(self, lines: list[str], *, sdp: bool, again: bool) -> Scenario:
        body = f"Content-Type: application/sdp\nContent-Length: [len]\n\n{SDP}" if sdp else "Content-Length: 0\n\n"
        text = "\n".join([*filter(None, lines), body])
        retransmitted = ' retrans="500"' if again else ""
        return self._step(f"<send{retransmitted}><![CDATA[\n{text}]]></send>")

    def _step(self, step: str) -> Scenario:
        self._steps.append(step)
        return self
