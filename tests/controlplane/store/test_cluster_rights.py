import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.controlplane.agent.agent_on_cluster import RULES as AGENT_RULES
from tests.testkit.controlplane.api import Manifest
from tests.testkit.controlplane.installed import COMMON_RULES, KEEPER_RULES, OWN_RULES, SIGN_IN_RULES

_PAGE = (Path(__file__).parents[3] / "docs" / "kubernetes" / "permissions.md").read_text()
_HEAD = "| resource | verbs | why |"

Right = tuple[str, str]
"""A verb, and what it may be done to."""


def _tables() -> list[str]:
    return [part.partition("\n\n")[0] for part in _PAGE.split(_HEAD)[1:]]


def _written(table: str) -> Iterator[Right]:
    resources: list[str] = []
    for row in table.splitlines()[2:]:
        named, verbs, why = (cell.strip() for cell in row.strip("|").split("|"))
        # An empty cell stands for what the row above names; a name in brackets is that of its group.
        resources = re.findall(r"`([^`]+)`", re.sub(r"\(.*?\)", "", named)) or resources
        assert why, f"no reason is given for {row}"
        yield from ((verb, resource) for verb in verbs.split(", ") for resource in resources)


def _granted(rules: Sequence[Manifest]) -> Iterator[Right]:
    for rule in rules:
        what = rule.get("resourceNames") or rule.get("resources") or rule["nonResourceURLs"]
        yield from ((verb, each) for verb in rule["verbs"] for each in what)


@pytest.mark.parametrize(
    ("place", "rules"),
    [(0, COMMON_RULES), (1, OWN_RULES), (2, AGENT_RULES), (3, KEEPER_RULES), (4, SIGN_IN_RULES)],
    ids=["supervisor", "own-namespace", "agent", "keeper", "sign-in"],
)
def test_the_rights_that_the_page_lists_are_those_of_the_tests(place: int, rules: Sequence[Manifest]) -> None:
    assert set(_written(_tables()[place])) == set(_granted(rules))
