"""Each page in Chinese is in step with the English page beside it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_CHINESE = ".zh-CN.md"
_NAMES = [*ROOT.glob(f"*{_CHINESE}"), *(ROOT / "docs").rglob(f"*{_CHINESE}")]
PAGES = sorted(path.relative_to(ROOT).as_posix().removesuffix(_CHINESE) for path in _NAMES)

_BLOCKS = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_LINKS = re.compile(r"\]\(([^)]+)\)")
_HEADINGS = re.compile(r"^#+ ", re.MULTILINE)
_ROWS = re.compile(r"^\|.*\|$", re.MULTILINE)
_APART = re.compile(r"[\u4e00-\u9fff] [\u4e00-\u9fff]")
"""A space within a sentence, as two joined lines leave it."""
_NOT_OURS = {
    "演习": "演练",
    "举行": "执行",
    "处理手册": "运行手册",
    "监管器": "supervisor",
    "检出目录": "代码目录",
    "弹性代理": "elastic agent",
    "照看": "管理",
    "有保障": "受保护",
    "扣住": "未放行",
    "扣留": "人为挂起",
    "留住": "未放行",
    "成组调度": "Gang 调度",
    "腾空": "排水",
    "禁止调度": "不可调度",
    "扩大": "扩容",
    "上下界": "上下限",
    "容量": "资源",
    "没有声音": "失联",
    "写注解": "添加注解",
    "(?<!命名)(?<!存储)空间": "空闲资源",
}
"""Words that mean something else to the readers, as patterns, and what is written instead."""

pytestmark = pytest.mark.parametrize("page", PAGES)


def _pair(page: str) -> tuple[str, str]:
    english, chinese = ((ROOT / f"{page}{suffix}").read_text(encoding="utf-8") for suffix in (".md", _CHINESE))
    return english, chinese


def _prose(page: str) -> tuple[str, str]:
    english, chinese = (_BLOCKS.sub("", text) for text in _pair(page))
    return english, chinese


def _target(link: str) -> str:
    """A link without its language and the name of its heading, which is translated."""
    return link.partition("#")[0].replace(_CHINESE, ".md")


def test_both_have_the_same_commands(page: str) -> None:
    english, chinese = (_BLOCKS.findall(text) for text in _pair(page))
    assert english == chinese


def test_both_speak_of_the_same_things(page: str) -> None:
    """As many sections and rows, the same names of files, commands and settings, and the same pages."""
    english, chinese = _prose(page)
    assert _HEADINGS.findall(english) == _HEADINGS.findall(chinese)
    assert [row.count("|") for row in _ROWS.findall(english)] == [row.count("|") for row in _ROWS.findall(chinese)]
    words = [sorted(" ".join(word.split()) for word in _CODE.findall(text)) for text in (english, chinese)]
    assert words[0] == words[1]
    pages = [{_target(link) for link in _LINKS.findall(text)} - {"", f"{Path(page).name}.md"} for text in _prose(page)]
    assert pages[0] == pages[1]


def test_each_leads_to_the_other(page: str) -> None:
    english, chinese = _pair(page)
    name = Path(page).name
    assert f"]({name}{_CHINESE})" in english
    assert f"]({name}.md)" in chinese


def test_every_page_that_is_linked_is_there(page: str) -> None:
    folder = (ROOT / page).parent
    linked = [link for text in _pair(page) for link in _LINKS.findall(text) if "://" not in link]
    assert linked
    assert not [link for link in linked if not (folder / link.partition("#")[0]).exists()]


def test_a_page_in_chinese_leads_to_pages_in_chinese_where_there_are_any(page: str) -> None:
    """But for the link to its own English page, at the top."""
    text, folder = _pair(page)[1], (ROOT / page).parent
    linked = [link.partition("#")[0] for link in _LINKS.findall(text) if "://" not in link]
    english = {link for link in linked if link.endswith(".md") and not link.endswith(_CHINESE)} - {
        f"{Path(page).name}.md"
    }
    assert sorted(link for link in english if (folder / f"{link.removesuffix('.md')}{_CHINESE}").exists()) == []


def test_the_words_are_those_of_the_field(page: str) -> None:
    text = _pair(page)[1]
    assert [f"{word}: write {ours}" for word, ours in _NOT_OURS.items() if re.search(word, text)] == []
    assert _APART.findall(text) == []
