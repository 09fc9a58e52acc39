from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callagent.agents.flows import FlowSettings, load_project
from callagent.agents.flows.conversation import Conversation
from callagent.agents.flows.knowledge import retrieve
from callagent.agents.flows.retrieval import TopicIndex, best_matches, words
from callagent.agents.flows.topics import Topic
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
INDEX = TopicIndex(TOPICS)


@pytest.mark.parametrize(
    ("question", "topic"),
    [
        ("what are your opening hours on saturday", "opening_hours"),
        ("is there somewhere to park", "parking"),
        ("may I bring two dogs", "pets"),
        ("I have an animal with me", "pets"),
    ],
)
def test_the_topic_that_fits_comes_first(question: str, topic: str):
    (first, *_) = INDEX.search(question)
    assert first.topic.name == topic
    assert 0.4 <= first.score <= 1


@pytest.mark.parametrize("text", ["", "yes", "no thank you", "um please"])
def test_words_without_a_subject_match_nothing(text: str):
    assert INDEX.search(text) == []


def test_the_same_question_scores_one():
    assert INDEX.search("Can I bring my dog?")[0].score == pytest.approx(1)


def test_excluded_topics_and_those_of_other_variants_are_left_out():
    assert INDEX.search("can I bring my dog", excluded=("pets",)) == []
    assert INDEX.search("is there a pool") == []
    assert INDEX.search("is there a pool", variant="south")[0].topic.name == "pool"


def test_matches_are_cut_by_threshold_and_number():
    matches = INDEX.search("can I park my dog")
    assert len(matches) == 2
    assert best_matches(matches, 0.99, 5) == []
    assert len(best_matches(matches, 0.1, 1)) == 1


def test_endings_do_not_count():
    assert words("parking parked parks") == ["park", "park", "park"]
    assert words("cities") == words("city")


def test_an_empty_project_has_an_index_too():
    assert TopicIndex(()).search("anything") == []


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
    conversation, index = Conversation.begin(call_info(), project, FlowSettings(), write), TopicIndex(project.topics)
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
