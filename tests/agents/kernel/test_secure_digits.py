from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.kernel.secure_digits import Vault

NAME = "[secure digits 1]"


@pytest.fixture
def vault() -> Vault:
    vault = Vault()
    assert vault.put("4929135724680135") == NAME
    return vault


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("card 4929135724680135.", f"card {NAME}."),
        ("4929 1357-2468 0135", NAME),
        (4929135724680135, NAME),
        ({"card": ["4929135724680135"], "4929135724680135": 1}, {"card": [NAME], NAME: 1}),
        ("14929135724680135", "14929135724680135"),
        ("ending 0135", "ending 0135"),
        (True, True),
        (b"4929135724680135", b"4929135724680135"),
    ],
)
def test_what_comes_back_has_the_name(vault: Vault, given: Any, kept: Any) -> None:
    assert vault.conceal(given) == kept


def test_a_function_is_given_the_digits(vault: Vault) -> None:
    assert vault.put("123") == "[secure digits 2]"
    assert vault.reveal({"card": NAME, "code": "[secure digits 2]", "n": 1}) == {
        "card": "4929135724680135",
        "code": "123",
        "n": 1,
    }


def test_two_digits_are_not_looked_for_in_other_numbers() -> None:
    vault = Vault()
    vault.put("12")
    assert vault.conceal("12 tables") == "12 tables"
