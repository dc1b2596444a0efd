"""The page on jobs quotes what the product says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "guide" / "job-troubleshooting.md"
_SAYS = ("supervisor", "job_supervisor", "sdk/kubeai")
_FIRST_CELL = re.compile(r"^\| (.*?) \|", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]+)`")
_COMMAND = "job-supervisor "
_NAMES = {"failed", "The job has ended: timed out."}
"""A field of Kubernetes, and a sentence whose end is a result's name."""


def test_each_quoted_sentence_is_one_that_a_person_can_read() -> None:
    """A whole piece of it, between what differs from job to job."""
    quotes = {quote for cell in _FIRST_CELL.findall(_PAGE.read_text("utf-8")) for quote in _QUOTED.findall(cell)}
    quotes = {quote for quote in quotes - _NAMES if not quote.startswith(_COMMAND)}
    assert len(quotes) > 12
    said = "\n".join(_texts())
    assert sorted(quote for quote in quotes if quote not in said) == []


def _texts() -> Iterator[str]:
    """Every literal text in the code."""
    for folder in _SAYS:
        for source in (_ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(source.read_text("utf-8")))
            yield from (each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str))
