from __future__ import annotations

import pytest

from callagent.models import embedding, open_embedder
from callagent.models.onnx_quantization import GRAPH, INT8, _encoded, _field, _fields, _node, computed_in_eight_bits


def tensor(name: str, dimensions: bytes, kind: int) -> bytes:
    sizes = b"".join(_field(1, 0, bytes([size])) for size in dimensions)
    return _field(5, 2, sizes + _field(2, 0, bytes([kind])) + _field(8, 2, name.encode()) + _field(9, 2, b"\x01" * 300))


def model(*extra: bytes) -> bytes:
    nodes = [
        _encoded("Cast", ("w_q",), ("w_f",)),
        _encoded("Mul", ("w_f", "w_scale"), ("w",)),
        _encoded("MatMul", ("x", "w"), ("y",)),
        *extra,
    ]
    graph = b"".join(_field(1, 2, node) for node in nodes) + tensor("w_q", b"\x02\x03", INT8)
    graph += tensor("w_scale", b"\x01\x03", 1)
    return _field(1, 0, b"\x08") + _field(GRAPH, 2, graph) + _field(8, 1, bytes(8)) + _field(9, 5, bytes(4))


def kinds(data: bytes) -> list[str]:
    (graph,) = (value for number, _, value in _fields(data) if number == GRAPH)
    return [_node(value).type for number, _, value in _fields(graph) if number == 1]


def test_a_widened_matrix_is_multiplied_as_it_is_stored():
    changed = computed_in_eight_bits(model())
    assert kinds(changed) == ["Cast", "DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul"]
    assert computed_in_eight_bits(changed) == changed


def test_a_matrix_that_something_else_reads_stays():
    looked_up = model(_encoded("Gather", ("w", "number"), ("row",)))
    assert computed_in_eight_bits(looked_up) == looked_up


@pytest.mark.parametrize("data", [b"\x0f\x01", b"\x3a\x05ab", b"\xff" * 12, b"\x39\x00"])
def test_what_is_no_model_is_refused(data: bytes):
    with pytest.raises(ValueError, match="not valid"):
        computed_in_eight_bits(data)


@pytest.mark.local
def test_every_matrix_of_the_embedded_model():
    opened = open_embedder()
    assert isinstance(opened, embedding.MiniLm)
    changed = kinds(computed_in_eight_bits(opened._model.read_bytes()))
    assert changed.count("MatMulInteger") == 36
