"""The README in Chinese is in step with the English one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")

_BLOCKS = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_LINKS = re.compile(r"\]\(([^)]+)\)")
_HEADINGS = re.compile(r"^#+ ", re.MULTILINE)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _prose(name: str) -> str:
    return _BLOCKS.sub("", _text(name))


def _words(name: str) -> list[str]:
    return sorted(" ".join(word.split()) for word in _CODE.findall(_prose(name)))


def test_both_have_the_same_commands() -> None:
    english, chinese = (_BLOCKS.findall(_text(name)) for name in READMES)
    assert english == chinese
    assert english


def test_both_speak_of_the_same_things() -> None:
    """As many sections, the same names of files, commands and settings, and the same pages."""
    english, chinese = READMES
    assert _HEADINGS.findall(_prose(english)) == _HEADINGS.findall(_prose(chinese))
    assert _words(english) == _words(chinese)
    pages = [sorted(set(_LINKS.findall(_prose(name))) - set(READMES)) for name in READMES]
    assert pages[0] == pages[1]


@pytest.mark.parametrize("name", READMES)
def test_every_page_that_is_linked_is_there(name: str) -> None:
    linked = [link for link in _LINKS.findall(_text(name)) if "://" not in link]
    assert linked
    assert not [link for link in linked if not (ROOT / link.partition("#")[0]).exists()]
