"""A model whose matrices are stored in eight bits, made to compute with eight bits.

Such a file widens each matrix to floating point and multiplies that: `MatMul(x, Mul(Cast(matrix), scale))`. The runtime
does the widening once, at the start, and then reads four times the memory for each word. Here each product becomes
`MatMulInteger` with inputs quantised as they come, which the runtime computes three times as fast. Fields and numbers
are of onnx.proto3 (https://github.com/onnx/onnx); what is not looked at is copied byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GRAPH = 7
NODE, INITIALIZER = 1, 5
NODE_INPUT, NODE_OUTPUT, NODE_TYPE, NODE_ATTRIBUTE = 1, 2, 4, 5
TENSOR_DIMENSIONS, TENSOR_TYPE, TENSOR_NAME = 1, 2, 8
INT8 = 3
_TO_FLOAT = b"\x0a\x02to\x18\x01\xa0\x01\x02"
"""AttributeProto `to` of a Cast: `{name: "to", i: FLOAT, type: INT}`."""
_LENGTH, _VARINT, _SIZES = 2, 0, {1: 8, 5: 4}

Field = tuple[int, int, bytes]
"""Number, wire type, and the value's bytes."""


@dataclass(frozen=True, slots=True)
class _Node:
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Matrix:
    stored: str
    """Initializer of whole numbers."""
    scale: str


def computed_in_eight_bits(model: bytes) -> bytes:
    """The same model with integer products; one that has no such matrices comes back as it is.

    Raises `ValueError` for bytes that are no model.
    """
    return b"".join(
        _field(number, wire, _graph(value) if number == GRAPH else value) for number, wire, value in _fields(model)
    )


def _graph(graph: bytes) -> bytes:
    fields = list(_fields(graph))
    whole = {_name(value) for number, _, value in fields if number == INITIALIZER and _is_whole(value)}
    matrices = _matrices([_node(value) for number, _, value in fields if number == NODE], whole)
    scales = {matrix.scale for matrix in matrices.values()}
    parts = []
    for number, wire, value in fields:
        if number == NODE:
            parts += [_field(NODE, _LENGTH, each) for each in _replaced(_node(value), matrices)]
        elif number == INITIALIZER and _name(value) in scales:
            parts.append(_field(number, wire, _flat(value)))
        else:
            parts.append(_field(number, wire, value))
    return b"".join(parts)


def _replaced(node: _Node, matrices: Mapping[str, _Matrix]) -> Iterator[bytes]:
    if node.type == "MatMul" and node.inputs[1] in matrices:
        yield from _product(node, matrices[node.inputs[1]])
    elif node.outputs[0] not in matrices:
        yield node.raw


def _matrices(nodes: list[_Node], whole: set[str]) -> Mapping[str, _Matrix]:
    """What only products read, by the name they read it under."""
    casts = {node.outputs[0]: node.inputs[0] for node in nodes if node.type == "Cast" and node.inputs[0] in whole}
    found = {
        node.outputs[0]: _Matrix(casts[node.inputs[0]], node.inputs[1])
        for node in nodes
        if node.type == "Mul" and node.inputs[0] in casts
    }
    for node in nodes:
        kept = node.inputs[:1] if node.type == "MatMul" else node.inputs
        for name in kept:
            found.pop(name, None)
    return found


def _product(node: _Node, matrix: _Matrix) -> Iterator[bytes]:
    (output,) = node.outputs
    quantised, scale, zero, whole, real, both = (f"{output}_{part}" for part in ("q", "s", "z", "i", "f", "b"))
    yield _encoded("DynamicQuantizeLinear", (node.inputs[0],), (quantised, scale, zero))
    yield _encoded("MatMulInteger", (quantised, matrix.stored, zero), (whole,))
    yield _encoded("Cast", (whole,), (real,), _field(NODE_ATTRIBUTE, _LENGTH, _TO_FLOAT))
    yield _encoded("Mul", (scale, matrix.scale), (both,))
    yield _encoded("Mul", (real, both), (output,))


def _encoded(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], attributes: bytes = b"") -> bytes:
    names = [*((NODE_INPUT, name) for name in inputs), *((NODE_OUTPUT, name) for name in outputs), (NODE_TYPE, kind)]
    return b"".join(_field(number, _LENGTH, name.encode()) for number, name in names) + attributes


def _node(value: bytes) -> _Node:
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_TYPE: []}
    for number, _, text in _fields(value):
        if number in texts:
            texts[number].append(text.decode())
    return _Node("".join(texts[NODE_TYPE]), tuple(texts[NODE_INPUT]), tuple(texts[NODE_OUTPUT]), value)


def _name(tensor: bytes) -> str:
    return next((value.decode() for number, _, value in _fields(tensor) if number == TENSOR_NAME), "")


def _is_whole(tensor: bytes) -> bool:
    return any(number == TENSOR_TYPE and value == bytes([INT8]) for number, _, value in _fields(tensor))


def _flat(tensor: bytes) -> bytes:
    """A scale for each column, without the row's dimension of one: only so the runtime joins the five steps to one."""
    fields = list(_fields(tensor))
    rows = [each for each in fields if each[:2] == (TENSOR_DIMENSIONS, _VARINT)]
    first = rows[0] if len(rows) == 2 and rows[0][2] == b"\x01" else None
    return b"".join(_field(*each) for each in fields if each is not first)


# Protocol buffers' wire format (https://protobuf.dev/programming-guides/encoding/).


def _fields(message: bytes) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire, begin = key >> 3, key & 7, at
        if wire == _VARINT:
            _, end = _varint(message, at)
        elif wire == _LENGTH:
            length, begin = _varint(message, at)
            end = begin + length
        elif wire in _SIZES:
            end = at + _SIZES[wire]
        else:
            raise ValueError("the model is not valid")
        if end > len(message):
            raise ValueError("the model is not valid")
        yield number, wire, message[begin:end]
        at = end


def _field(number: int, wire: int, value: bytes) -> bytes:
    length = _number(len(value)) if wire == _LENGTH else b""
    return _number(number << 3 | wire) + length + value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("the model is not valid")


def _number(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))
