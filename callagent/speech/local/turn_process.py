"""`python -m callagent.speech.local.turn_process FD`: Smart Turn for all calls of one core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from callagent.audio import SAMPLE_RATE
from callagent.speech.local import process, wire

FILE = Path(__file__).parents[1] / "data" / "smart_turn.onnx"
SECONDS = 8
"""As much as the model hears: the end of what was said."""
EPSILON = 1e-7
"""Added to the variance, as in training."""


def load(settings: wire.LoadTurnModel) -> process.Serve:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(FILE), options, providers=["CPUExecutionProvider"])

    def serve(request: wire.Request) -> wire.Answer:
        if not isinstance(request, wire.Judge):
            raise ValueError(f"{type(request).__name__} is not for a turn model")
        return wire.Judged(request.number, probability(session, request.pcm))

    serve(wire.Judge(0, bytes(2 * SAMPLE_RATE)))
    return serve


def probability(session: Any, pcm: bytes) -> float:
    """That who spoke last in `pcm` (8 kHz) has finished."""
    import numpy as np
    import soxr

    from callagent.speech.local import mel

    wanted = SECONDS * mel.SAMPLE_RATE
    samples = np.frombuffer(pcm, dtype="<i2").astype(np.float32) / 32768
    audio = soxr.resample(samples, SAMPLE_RATE, mel.SAMPLE_RATE)[-wanted:]
    audio = np.pad(audio, (wanted - len(audio), 0))
    audio = ((audio - audio.mean()) / np.sqrt(audio.var() + EPSILON)).astype(np.float32)
    features = mel.log_mel(audio, SECONDS)[None]
    return float(session.run(None, {"input_features": features})[0].reshape(-1)[0])


if __name__ == "__main__":
    process.run(wire.LoadTurnModel, load, lambda settings: 1)
