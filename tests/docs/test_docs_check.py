"""The page about `check` agrees with the rules."""

import re
from pathlib import Path

from supervisor.check.checking import RULES

_PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "check.md").read_text("utf-8")


def test_the_page_lists_every_rule_in_order() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (error|warning|hint) \| (.+) \|$", _PAGE, re.MULTILINE)
    assert rows == [(rule.id, rule.severity.value, rule.title) for rule in RULES]
