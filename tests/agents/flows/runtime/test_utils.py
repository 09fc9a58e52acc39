from __future__ import annotations

from pathlib import Path

import pytest

from callagent.workers.protocol import AskFailed
from tests.agents.flows.runtime.support import Core, call_of

ADDRESS = "a = conv.utils.{}\nreturn [a.street_number, a.street_name, a.city, a.country]"


def test_an_address_is_read_by_the_model_from_the_conversation(tmp_path: Path):
    core = Core({"street_number": 12, "street_name": "Main Street", "city": None, "state": "NY"})
    answer = call_of(tmp_path)(ADDRESS.format("extract_address(['12 Main Street', '9 Elm Road'])"), core).run("f")
    assert answer["returned"] == ["12", "Main Street", None, "US"]
    asked = core.messages[0]
    assert (asked["show_history"], asked["return_json"]) == (True, True)
    assert "12 Main Street; 9 Elm Road" in asked["prompt"]


def test_a_city_may_be_one_of_some(tmp_path: Path):
    core = Core('```json\n{"city": "Bonn", "country": "DE"}\n```')
    answer = call_of(tmp_path)(ADDRESS.format("extract_city(['Bonn'], states=['NRW'], country='AT')"), core).run("f")
    assert answer["returned"] == [None, None, "Bonn", "DE"]
    assert "known cities, perhaps misheard: Bonn" in core.messages[0]["prompt"]
    assert "known states, perhaps misheard: NRW" in core.messages[0]["prompt"]


@pytest.mark.parametrize("given", [{}, {"city": None}, {"country": "US"}, "well", AskFailed("down")])
def test_what_is_not_there_is_an_error_with_a_name(tmp_path: Path, given: object):
    error = call_of(tmp_path)(ADDRESS.format("extract_address()"), Core(given)).run("f")["error"]
    assert error["type"] == "ExtractionError"
