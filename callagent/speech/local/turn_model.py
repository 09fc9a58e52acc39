"""The embedded turn model: Smart Turn in a process of its own. It judges intonation, not words, in any language.

`load_model` runs in the process, which is started as `python -m callagent.speech.local.turn_model FD`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from callagent.audio import SAMPLE_RATE
from callagent.speech.local import inference, weights
from callagent.speech.local.inference import Engine, Job, Urgency

if TYPE_CHECKING:
    from callagent.speech.local.whisper import Floats

ANSWER_SECONDS = 0.5
"""Time for an answer: it is of no use after the silence has ended the turn."""


class LocalTurnModel:
    """Smart Turn, shared by all calls. It is weak on telephone speech, so it only shortens or lengthens a silence."""

    def __init__(self) -> None:
        self.engine = Engine("callagent.speech.local.turn_model", inference.LoadTurnModel())

    async def start(self) -> None:
        """Return when the model is loaded. Raises `MissingExtra`, `UserError` or `ProviderError`."""
        weights.require_turn_model()
        await self.engine.start()

    async def finished(self, pcm: bytes) -> float | None:
        """Return the probability that whoever spoke last in `pcm` has finished; None if the model is too slow."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[inference.Answer | None] = loop.create_future()

        def on_answer(judged: inference.Answer | None) -> None:
            if not answer.done():
                answer.set_result(judged)

        # The caller's silence goes on while the model works, so nothing is more urgent.
        job = Job(Urgency.NOW, lambda number: inference.Judge(number, pcm), on_answer, loop.time() + ANSWER_SECONDS)
        self.engine.submit(job)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                judged = await answer
        except TimeoutError:
            return None
        finally:
            self.engine.cancel(job)
        return judged.probability if isinstance(judged, inference.Judged) else None

    async def close(self) -> None:
        await self.engine.close()


MODEL_FILE = Path(__file__).parents[1] / "data" / "smart_turn.onnx"
INPUT_SECONDS = 8
"""Length of the model's input: the end of the audio."""
EPSILON = 1e-7
"""Added to the variance of the audio, as in training."""


class Session(Protocol):
    """The part of an `onnxruntime.InferenceSession` that is used here; the package has no types."""

    def run(self, outputs: None, inputs: Mapping[str, Floats]) -> Sequence[Floats]: ...


def load_model(settings: inference.LoadTurnModel) -> inference.Serve:
    """Load the model, and return the function that answers requests."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(MODEL_FILE), options, providers=["CPUExecutionProvider"])

    def serve(request: inference.Request) -> inference.Answer:
        if not isinstance(request, inference.Judge):
            raise ValueError(f"a turn model cannot answer {type(request).__name__}")
        return inference.Judged(request.number, probability(session, request.pcm))

    # The first run allocates the memory that later ones reuse.
    serve(inference.Judge(0, bytes(2 * SAMPLE_RATE)))
    return serve


def probability(session: Session, pcm: bytes) -> float:
    """Return the probability that the person who spoke last in `pcm` (8 kHz) has finished."""
    import numpy as np
    import soxr

    from callagent.speech.local.whisper import WHISPER_RATE, log_mel

    length = INPUT_SECONDS * WHISPER_RATE
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
    audio = soxr.resample(samples, SAMPLE_RATE, WHISPER_RATE)[-length:]
    # As in training, shorter audio is padded at its start, and the input has mean 0 and variance 1.
    audio = np.pad(audio, (length - len(audio), 0))
    audio = ((audio - audio.mean()) / np.sqrt(audio.var() + EPSILON)).astype(np.float32)
    features = log_mel(audio, INPUT_SECONDS)[None]
    return float(session.run(None, {"input_features": features})[0].reshape(-1)[0])


if __name__ == "__main__":
    inference.run(inference.LoadTurnModel, load_model, lambda settings: 1)
