"""`callagent call`: the test phone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from callagent.commands.arguments import add_command, add_config, config_of, log_to_stderr, seconds

if TYPE_CHECKING:
    from callagent.commands.arguments import Commands


_CALL_EXAMPLES = """\
  callagent call sip:agent@127.0.0.1:5060 --say "where is my parcel" --say "eight four two seven six"
  callagent call sip:agent@127.0.0.1 --dtmf 84276# --record call.wav
  callagent call sip:agent@127.0.0.1 --play caller.wav --json
  callagent call http://127.0.0.1:8080/twilio/voice --say hello     as a carrier (needs TWILIO_AUTH_TOKEN)
  callagent call sip:agent@127.0.0.1 --script caller.yaml
a script:
  - say: "where is my parcel"     when the agent has paused
  - press: "84276#"
  - wait_for: "arrives on"        a regular expression for what the agent says
  - interrupt: "stop please"      while the agent speaks
    after: 1.0
  - backchannel: "mm-hm"          the same; the agent is to go on
  - mumble: 1.5                   speech without words
  - stay_silent: 20               until the agent speaks again
  - noise: -35                    from here on, dB below full scale; off
  - packet_loss: 5                from here on, per cent
  - wait: 2
  - hang_up: true"""


def add(commands: Commands) -> None:
    what = "a test phone: call a SIP URI or a server's stream webhook, speak, listen"
    parser = add_command(commands, "call", what, _call, _CALL_EXAMPLES)
    parser.add_argument("target", help="sip:USER@HOST:PORT, or the http(s) URL of a server's voice webhook")
    add_config(parser)
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument(
        "--say", action="append", metavar="TEXT", help="speak, each after the agent has finished; repeatable"
    )
    lines.add_argument("--play", action="append", type=Path, metavar="WAV", help="play a file instead; repeatable")
    lines.add_argument(
        "--script",
        type=Path,
        metavar="FILE",
        help="a YAML list of what the caller does, step by step, as below",
    )
    parser.add_argument("--dtmf", metavar="DIGITS", help="keys to press after the first agent utterance")
    parser.add_argument("--record", type=Path, metavar="WAV", help="stereo: caller left, agent right")
    parser.add_argument("--caller", default="+15550100", metavar="NUMBER", help="who calls (default: +15550100)")
    parser.add_argument("--seconds", type=seconds, default=120.0, help="hang up after so long (default: 120)")
    parser.add_argument("--json", action="store_true", help="one JSON object an event")


def _call(options: argparse.Namespace) -> int:
    from callagent.phone import run_phone

    log_to_stderr()
    return run_phone(config_of(options), options)
