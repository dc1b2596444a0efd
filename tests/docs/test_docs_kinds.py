"""The page on kinds says what the tests under the real controllers show."""

from pathlib import Path

from supervisor.jobs.registry import KINDS
from tests.controlplane.kinds.kind_support import ALL, shown, table

_PAGE = Path(__file__).parents[2] / "docs" / "kinds" / "README.md"


def test_the_page_has_the_table_of_what_is_shown() -> None:
    """`python -m tests.controlplane.kinds.kind_support` prints it."""
    assert "\n".join(table()) in _PAGE.read_text(encoding="utf-8")


def test_each_kind_is_shown() -> None:
    assert {support.kind for support in ALL} == {kind.name for kind in KINDS}


def test_a_run_prints_what_it_has_shown_and_what_not() -> None:
    first, second = ALL[:2]
    outcomes = {(first.title, "finished"): "passed", (second.title, "timed out"): "failed"}
    lines = list(shown(outcomes))
    assert len(lines) == 3
    assert lines[0] == "| kind | controller | finished | timed out |"
    assert lines[1].endswith(f"{first.tested_with} | passed | - |")
    assert lines[2].endswith(f"{second.tested_with} | - | failed |")
