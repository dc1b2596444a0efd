"""The page of log events names what the services write, no more and no less, each with its fields."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "logs.md"
PACKAGES = ("job_supervisor", "supervisor", "node_agent", "servicekit")
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}

_EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
_ROW = re.compile(
    r"^\| `(?P<event>[a-z_.]+)` \| (?P<level>[a-z]+) \| (?P<fields>[^|]*) \| [^|]+ \|$",
    re.MULTILINE,
)
_CORRELATED = {"notice": "notice", "drill": "notice", "job": "job", "directive": "job"}
"""What is about one of these says which, by that field."""

Line = tuple[str, str, frozenset[str]]
"""An event, its level and its fields."""


def lines(path: Path) -> Iterator[Line]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    bound = {each for call in calls if _named(call) == "bind" for each in _fields(call)}
    for call in calls:
        first = call.args[0] if call.args else None
        if _named(call) not in LEVELS or not isinstance(first, ast.Constant):
            continue
        if isinstance(first.value, str) and _EVENT.fullmatch(first.value):
            yield first.value, LEVELS[_named(call)], frozenset(_fields(call) | bound)


def _named(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _fields(call: ast.Call) -> set[str]:
    return {each.arg for each in call.keywords if each.arg is not None} - {"exc_info"}


@cache
def logged() -> dict[str, tuple[str, str]]:
    """Level and fields of each event, the fields of all its places together."""
    found: dict[str, tuple[str, set[str]]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for event, level, fields in lines(path):
                known = found.setdefault(event, (level, set()))
                assert known[0] == level, f"{event} has two levels"
                known[1].update(fields)
    return {event: (level, _written(fields)) for event, (level, fields) in found.items()}


def _written(fields: set[str]) -> str:
    return ", ".join(f"`{field}`" for field in sorted(fields))


def test_the_page_and_the_code_agree() -> None:
    rows = list(_ROW.finditer(PAGE.read_text(encoding="utf-8")))
    written = {row["event"]: (row["level"], row["fields"].strip()) for row in rows}
    assert written == logged()
    assert len(rows) == len(written)


def test_lines_about_one_notice_or_job_say_which() -> None:
    missing = [
        event
        for event, (_, fields) in logged().items()
        if (field := _CORRELATED.get(event.partition(".")[0])) and f"`{field}`" not in fields
    ]
    assert not missing


@pytest.mark.parametrize("source", ['log.info("a.b", x=1)', 'log.bind(x=1)\nlog.exception("a.b", exc_info=error)'])
def test_a_line_is_found(tmp_path: Path, source: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(source, encoding="utf-8")
    [(event, level, fields)] = lines(module)
    assert event == "a.b"
    assert level in {"info", "error"}
    assert fields == {"x"}
