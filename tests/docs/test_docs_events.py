import re
from pathlib import Path

from supervisor.observability.events.rules import EVENT_REASONS

_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "events.md").read_text("utf-8")


def test_the_page_lists_every_event() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \|", _PAGE, re.MULTILINE)
    assert sorted(rows) == sorted((reason.name, reason.type.value, reason.action) for reason in EVENT_REASONS)
