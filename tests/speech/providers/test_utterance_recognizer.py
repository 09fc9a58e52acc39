"""Google and Azure, which are asked for an utterance when it is over."""

from __future__ import annotations

import base64
import io
import json
import wave
from typing import Any

import pytest

from callagent.speech import RecognizerSettings, Transcript
from callagent.speech.providers.recognizer_streams import MAX_AUDIO_BYTES
from tests.speech.providers.server import answers
from tests.speech.providers.test_recognizers import FRAMES, Ear, ProviderServer, failure, listening


async def hear(name: str, answer: Any, settings: RecognizerSettings | None = None) -> tuple[Ear, ProviderServer]:
    async with listening(name, answers(200, json.dumps(answer))) as (ear, server):
        ear.stream.begin(settings or RecognizerSettings())
        for frame in FRAMES:
            ear.stream.feed(frame)
        ear.stream.finish()
        await ear.until(lambda: ear.finals)
    return ear, server


async def test_google_gets_telephone_audio_and_phrases() -> None:
    answer = {
        "results": [
            {
                "alternatives": [
                    {"transcript": "a table for two", "confidence": 0.5},
                    {"transcript": "a table for you", "confidence": 0.25},
                ]
            }
        ]
    }
    ear, server = await hear("google", answer, RecognizerSettings("en-GB", keywords=("table",)))
    assert ear.finals == [Transcript("a table for two", True, 1, ("a table for you",), 0.5)]
    asked = server.asked[0]
    body = json.loads(asked.body)
    assert (asked.path, asked.headers["X-Goog-Api-Key"]) == ("/v1/speech:recognize", "secret")
    assert body["config"]["encoding"] == "MULAW"
    assert body["config"]["sampleRateHertz"] == 8000
    assert body["config"]["languageCode"] == "en-GB"
    assert body["config"]["speechContexts"] == [{"phrases": ["table"]}]
    assert len(base64.b64decode(body["audio"]["content"])) == 50 * 160


async def test_parts_that_google_sends_are_joined_and_silence_is_empty() -> None:
    parts = {"results": [{"alternatives": [{"transcript": "one"}]}, {}, {"alternatives": [{"transcript": " two"}]}]}
    ear, _ = await hear("google", parts)
    assert ear.finals == [Transcript("one two", True, 1)]
    ear, _ = await hear("google", {"totalBilledTime": "2s"})
    assert ear.finals == [Transcript("", True, 1)]


async def test_azure_gets_a_file_at_16_khz() -> None:
    best = [{"Display": "A table for two.", "Confidence": 0.9}, {"Display": "A table for you."}]
    answer = {"RecognitionStatus": "Success", "NBest": best}
    ear, server = await hear("azure", answer, RecognizerSettings("fr-FR"))
    assert ear.finals == [Transcript("A table for two.", True, 1, ("A table for you.",), 0.9)]
    asked = server.asked[0]
    assert asked.path == "/speech/recognition/conversation/cognitiveservices/v1"
    assert asked.query == {"language": "fr-FR", "format": "detailed"}
    assert asked.headers["Ocp-Apim-Subscription-Key"] == "secret"
    with wave.open(io.BytesIO(asked.body)) as recording:
        assert recording.getframerate() == 16000
        assert recording.getnframes() == pytest.approx(16000, abs=4)


@pytest.mark.parametrize("status", ["NoMatch", "InitialSilenceTimeout", "BabbleTimeout"])
async def test_where_azure_heard_nothing_the_transcript_is_empty(status: str) -> None:
    ear, _ = await hear("azure", {"RecognitionStatus": status})
    assert ear.finals == [Transcript("", True, 1)]


WRONG: list[tuple[str, Any]] = [
    ("azure", {"RecognitionStatus": "Error"}), ("azure", {"RecognitionStatus": "Success"}), ("azure", []),
    ("azure", {"RecognitionStatus": "Success", "NBest": [{"Display": "x", "Confidence": "high"}]}),
    ("google", {"results": [{"alternatives": [{}]}]}), ("google", {"results": 5}), ("google", "x"),
    ("google", {"results": [5]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), WRONG)
async def test_what_is_no_transcription(name: str, answer: Any) -> None:
    await failure(name, answers(200, json.dumps(answer)))


async def test_an_endless_utterance_is_cut_to_what_providers_take() -> None:
    async with listening("google", answers(200, "{}")) as (ear, server):
        ear.stream.begin(RecognizerSettings())
        for _ in range(61 * 50):
            ear.stream.feed(bytes(320))
        ear.stream.finish()
        await ear.until(lambda: ear.finals)
    content = json.loads(server.asked[0].body)["audio"]["content"]
    assert len(base64.b64decode(content)) == MAX_AUDIO_BYTES // 2
