from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from callagent.errors import UserError
from callagent.models import embedding, open_embedder


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
    with pytest.raises(UserError, match=r"model\.onnx is not the file that was measured"):
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
    monkeypatch.setattr(embedding, "computed_in_eight_bits", lambda model: model)
    exact = await embedding.MiniLm(model._model, model._tokenizer).embed(texts)
    assert all(float(one @ two) > 0.97 for one, two in zip(fast, exact, strict=True))
