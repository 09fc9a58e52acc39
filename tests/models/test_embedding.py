from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.models import embedding, open_embedder
from callagent.models.embedding import (
    GRAPH,
    INT8,
    _encode_field,
    _encode_node,
    _parse_fields,
    _parse_node,
    use_integer_products,
)


@pytest.mark.local
async def test_whatever_was_said_has_a_vector():
    model = open_embedder()
    assert model is not None
    vectors = await model.embed(["", "\ud800 x", "¿dónde?", "word " * 1000])
    assert all(float(vector @ vector) == pytest.approx(1, abs=1e-3) for vector in vectors)


@pytest.mark.local
async def test_the_vectors_of_a_project_are_kept(tmp_path: Path):
    model = open_embedder()
    assert isinstance(model, embedding.MiniLm)
    texts = [f"the {n}th text" for n in range(embedding.BATCH + 1)]
    first = embedding.MiniLm(model._model, model._tokenizer, tmp_path / "vectors")
    made = await first.embed(texts)
    (file,) = (tmp_path / "vectors").iterdir()
    second = embedding.MiniLm(tmp_path / "no model", tmp_path / "no tokenizer", tmp_path / "vectors")
    kept = await second.embed(texts)
    assert all((one == two).all() for one, two in zip(made, kept, strict=True))
    file.write_bytes(b"damaged")
    again = await first.embed(texts)
    assert all(abs(one - two).max() < 1e-5 for one, two in zip(made, again, strict=True))


def test_without_the_packages_there_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedding, "find_spec", lambda name: None)
    assert open_embedder.__wrapped__() is None


def test_altered_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(b"something else")
    spec = ModuleSpec("any", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(embedding, "find_spec", lambda name: spec)
    with pytest.raises(UserError, match=r"model\.onnx does not have the expected SHA-256"):
        open_embedder.__wrapped__()
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(UserError, match=r"model\.onnx: cannot be read"):
        open_embedder.__wrapped__()


@pytest.mark.local
async def test_computing_in_eight_bits_changes_next_to_nothing(monkeypatch: pytest.MonkeyPatch):
    model = open_embedder()
    assert isinstance(model, embedding.MiniLm)
    texts = ["When do you open?", "I would like to cancel my appointment on Friday.", "No."]
    fast = await model.embed(texts)
    monkeypatch.setattr(embedding, "use_integer_products", lambda model: model)
    exact = await embedding.MiniLm(model._model, model._tokenizer).embed(texts)
    assert all(float(one @ two) > 0.97 for one, two in zip(fast, exact, strict=True))


def tensor(name: str, dimensions: bytes, kind: int) -> bytes:
    sizes = b"".join(_encode_field(1, 0, bytes([size])) for size in dimensions)
    return _encode_field(
        5,
        2,
        sizes
        + _encode_field(2, 0, bytes([kind]))
        + _encode_field(8, 2, name.encode())
        + _encode_field(9, 2, b"\x01" * 300),
    )


def model(*extra: bytes) -> bytes:
    nodes = [
        _encode_node("Cast", ("w_q",), ("w_f",)),
        _encode_node("Mul", ("w_f", "w_scale"), ("w",)),
        _encode_node("MatMul", ("x", "w"), ("y",)),
        *extra,
    ]
    graph = b"".join(_encode_field(1, 2, node) for node in nodes) + tensor("w_q", b"\x02\x03", INT8)
    graph += tensor("w_scale", b"\x01\x03", 1)
    return (
        _encode_field(1, 0, b"\x08")
        + _encode_field(GRAPH, 2, graph)
        + _encode_field(8, 1, bytes(8))
        + _encode_field(9, 5, bytes(4))
    )


def kinds(data: bytes) -> list[str]:
    (graph,) = (value for number, _, value in _parse_fields(data) if number == GRAPH)
    return [_parse_node(value).type for number, _, value in _parse_fields(graph) if number == 1]


def test_a_widened_matrix_is_multiplied_as_it_is_stored():
    changed = use_integer_products(model())
    assert kinds(changed) == ["Cast", "DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul"]
    assert use_integer_products(changed) == changed


def test_a_matrix_that_something_else_reads_stays():
    looked_up = model(_encode_node("Gather", ("w", "number"), ("row",)))
    assert use_integer_products(looked_up) == looked_up


@pytest.mark.parametrize("data", [b"\x0f\x01", b"\x3a\x05ab", b"\xff" * 12, b"\x39\x00"])
def test_what_is_no_model_is_refused(data: bytes):
    with pytest.raises(ValueError, match="not valid"):
        use_integer_products(data)


@pytest.mark.local
def test_every_matrix_of_the_embedded_model():
    opened = open_embedder()
    assert isinstance(opened, embedding.MiniLm)
    changed = kinds(use_integer_products(opened._model.read_bytes()))
    assert changed.count("MatMulInteger") == 36
