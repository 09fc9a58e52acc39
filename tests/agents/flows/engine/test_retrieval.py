from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows import FlowSettings, load_project
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.retrieval import Match, MeaningIndex, WordIndex, best_matches, retrieve, words
from callagent.agents.flows.format.steps_and_topics import Topic
from callagent.models import open_embedder
from tests.agents.flows.support import call_info, write_project

TOPICS = (
    Topic("opening_hours", "We are open from nine to five, on Saturday until noon.", "", ("When are you open?",), "a"),
    Topic(
        "parking",
        "There is a car park behind the house.",
        "",
        ("Where can I park my car?", "Do you have parking?"),
        "b",
    ),
    Topic("pets", "Dogs are welcome on the terrace.", "", ("Can I bring my dog?", "Are animals allowed?"), "c"),
    Topic("pool", "The pool is heated.", "", ("Is there a pool?",), "d", variant="south"),
)
INDEX = WordIndex(TOPICS)


@pytest.mark.parametrize(
    ("question", "topic"),
    [
        ("what are your opening hours on saturday", "opening_hours"),
        ("is there somewhere to park", "parking"),
        ("may I bring two dogs", "pets"),
        ("I have an animal with me", "pets"),
    ],
)
async def test_the_topic_that_fits_comes_first(question: str, topic: str):
    (first, *_) = await INDEX.search(question)
    assert first.topic.name == topic
    assert 0.4 <= first.score <= 1


@pytest.mark.parametrize("text", ["", "yes", "no thank you", "um please"])
async def test_words_without_a_subject_match_nothing(text: str):
    assert await INDEX.search(text) == []


async def test_the_same_question_scores_one():
    assert (await INDEX.search("Can I bring my dog?"))[0].score == pytest.approx(1)


async def test_excluded_topics_and_those_of_other_variants_are_left_out():
    assert await INDEX.search("can I bring my dog", excluded=("pets",)) == []
    assert await INDEX.search("is there a pool") == []
    assert (await INDEX.search("is there a pool", variant="south"))[0].topic.name == "pool"


async def test_matches_are_cut_by_threshold_and_number():
    matches = await INDEX.search("can I park my dog")
    assert len(matches) == 2
    assert best_matches(matches, 0.99, 5) == []
    assert len(best_matches(matches, 0.1, 1)) == 1


def test_endings_do_not_count():
    assert words("parking parked parks") == ["park", "park", "park"]
    assert words("cities") == words("city")


async def test_an_empty_project_has_an_index_too():
    assert await WordIndex(()).search("anything") == []


async def test_topics_of_earlier_turns_stay_and_a_citation_is_counted_once_a_turn(tmp_path: Path):
    written: list[tuple[str, Any]] = []

    async def write(name: str, value: Any) -> None:
        written.append((name, value))

    files = {
        "topics/cats.yaml": "name: cats\ncontent: Cats purr.\nexample_queries: [do you have cats]\n",
        "topics/cars.yaml": "name: cars\ncontent: Cars honk.\nexample_queries: [do you have cars]\n",
        "topics/boats.yaml": "name: boats\ncontent: Boats float.\nexample_queries: [do you have boats]\n",
    }
    settings = '{"ragdoll": {"top_k": 1, "history_len": 2, "qa_metric_exclusions": ["boats"]}}'
    project, _ = load_project(write_project(tmp_path, {**files, "agent_settings/experimental_config.json": settings}))
    conversation, index = Conversation.begin(call_info(), project, FlowSettings(), write), WordIndex(project.topics)
    await retrieve(conversation, index, "do you have cats")
    await retrieve(conversation, index, "and cars")
    await retrieve(conversation, index, "yes")
    assert conversation.topics == ["cars", "cats"]
    assert written == [("QA", "cats"), ("QA", "cars")]
    await retrieve(conversation, index, "boats?")
    assert conversation.topics == ["boats", "cars"]
    assert len(written) == 2
    conversation.disabled_topics = ("boats",)
    await retrieve(conversation, index, "boats?")
    assert "boats" not in conversation.topics


class Searched(WordIndex):
    """An index that keeps what it was asked to search."""

    def __init__(self) -> None:
        super().__init__(TOPICS)
        self.texts: list[str] = []

    async def search(self, text: str, excluded: Iterable[str] = (), variant: str | None = None) -> list[Match]:
        self.texts.append(text)
        return await super().search(text, excluded, variant)


@pytest.mark.parametrize(
    ("number", "searched"),
    [
        (0, ["t9"]),
        (1, ["t9", "t8 t9"]),
        (7, ["t9", "t2 t3 t4 t5 t6 t7 t8 t9"]),
        (50, ["t9", "t0 t1 t2 t3 t4 t5 t6 t7 t8 t9"]),
        (-1, ["t9"]),
    ],
)
async def test_so_many_earlier_inputs_are_searched_as_the_project_says(
    tmp_path: Path, number: int, searched: list[str]
):
    async def write(name: str, value: Any) -> None:
        raise AssertionError("nothing was found")

    settings = f'{{"ragdoll": {{"previous_user_inputs_len": {number}}}}}'
    project, _ = load_project(write_project(tmp_path, {"agent_settings/experimental_config.json": settings}))
    conversation, index = Conversation.begin(call_info(), project, FlowSettings(), write), Searched()
    for turn in range(10):
        index.texts.clear()
        await retrieve(conversation, index, f"t{turn}")
    assert index.texts == searched


class Letters:
    """An embedder without a model: how often each letter comes."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def embed(self, texts: Sequence[str]) -> list[Any]:
        numpy = pytest.importorskip("numpy")
        self.asked.append(list(texts))
        vectors = [
            numpy.array([text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]) for text in texts
        ]
        return [vector / (numpy.linalg.norm(vector) or 1) for vector in vectors]


async def test_by_meaning_a_topic_is_as_near_as_the_nearest_of_its_texts():
    long = Topic("menu", " ".join(["soup"] * 100), "", ("What is for dinner?",), "e")
    embedder = Letters()
    index = MeaningIndex((*TOPICS, long), embedder)
    await index.prepare()
    assert "opening hours" in embedder.asked[0]
    assert sum("soup" in text for text in embedder.asked[0]) == 3
    (best, *rest) = await index.search("Can I bring my dog?")
    assert (best.topic.name, round(best.score, 3)) == ("pets", 1.0)
    assert [match.score for match in rest] == sorted((match.score for match in rest), reverse=True)
    assert "pool" not in [match.topic.name for match in (best, *rest)]
    assert (await index.search("Is there a pool?", ("pets",), "south"))[0].topic.name == "pool"
    assert await index.search("   ") == []


async def test_without_topics_there_is_nothing_to_find_by_meaning():
    index = MeaningIndex((), Letters())
    await index.prepare()
    assert await index.search("anything") == []


@pytest.mark.local
async def test_the_embedded_engine_finds_topics_that_share_no_word():
    embedder = open_embedder()
    assert embedder is not None
    index = MeaningIndex(TOPICS, embedder)
    await index.prepare()
    for question, topic in (
        ("where could I leave my vehicle", "parking"),
        ("is my puppy allowed in", "pets"),
        ("until what time can I visit you", "opening_hours"),
    ):
        (first, *_) = await index.search(question)
        assert first.topic.name == topic, question
        assert first.score >= 0.4, question
    # Order and length of what is embedded do not matter.
    one, two = await embedder.embed(["a dog", "there is a car park behind the house, and it is free of charge"])
    (alone,) = await embedder.embed(["a dog"])
    assert float(one @ alone) == pytest.approx(1, abs=0.02)
    assert float(one @ two) < 0.5
