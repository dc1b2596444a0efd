"""Every test that the security page names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PAGE = (ROOT / "docs" / "reference" / "security.md").read_text(encoding="utf-8")
_FILES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
_DEFINED = set(re.findall(r"def (test_\w+)", "\n".join(_FILES.values())))


def _is_there(name: str) -> bool:
    """A name that ends in dots stands for all that begin so."""
    begin, dots, _ = name.partition("…")
    return any(each.startswith(begin) for each in _DEFINED) if dots else name in _DEFINED


def test_the_tests_of_each_threat_are_there() -> None:
    """By file and by name; a renamed one leaves no threat without its proof."""
    named = re.findall(r"`(?:[\w/]*/)?(test_[\w…]+)(\.py)?`", _PAGE)
    files = {name + ending for name, ending in named if ending}
    tests = {name for name, ending in named if not ending}
    assert len(tests) > 30
    assert not {name for name in files if name not in _FILES}
    assert not {name for name in tests if not _is_there(name)}
