"""The names that contributors are given for the words of the code exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PAGE = (ROOT / "docs" / "maintainers" / "words-of-the-code.md").read_text("utf-8")
_ROW = re.compile(r"^\|[^|]+\|[^|]+\|([^|]+)\|$", re.MULTILINE)
_DEFINITION = re.compile(r"^(?:class|def|async def) (\w+)|^(\w+)(?:: [^=]+)? = ", re.MULTILINE)
_PACKAGES = ("job_supervisor", "supervisor", "node_agent", "servicekit")


def test_every_name_in_the_code_column_is_defined() -> None:
    code = "\n".join(path.read_text("utf-8") for package in _PACKAGES for path in (ROOT / package).rglob("*.py"))
    defined = {name for names in _DEFINITION.findall(code) for name in names}
    named = [name for cell in _ROW.findall(_PAGE) for name in re.findall(r"`(\w+)`", cell)]
    assert len(named) > 30
    assert [name for name in named if name not in defined] == []
