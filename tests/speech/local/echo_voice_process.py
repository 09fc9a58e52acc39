"""The echo process, loaded as a voice."""

from __future__ import annotations

from callagent.speech.local import inference
from tests.speech.local.echo_process import load_voice

if __name__ == "__main__":
    inference.run(inference.LoadVoice, load_voice, lambda settings: 1)
