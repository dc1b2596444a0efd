"""Links between pages, and mentions of pages in code."""

import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_HTML_SOURCE = re.compile(r'src="([^"]+)"')
_TOP = "benchmarks|charts|docs|mutants|node_agent|proto|requirements|sdk|servicekit|simulator|supervisor|tests"
_PATH = re.compile(rf"(?<![\w/.-])(?:{_TOP})/[\w./-]*\w(?![\w*…{{}}])")
_MENTION = re.compile(r"\bdocs/[\w/-]+\.md\b")
_CODE = {".py", ".pyi", ".proto", ".yaml", ".yml", ".toml", ".json", ".tpl", ".txt", ".html", ".js", ".css", ".sh", ""}


def files() -> Iterator[Path]:
    """Everything in the checkout except what is built and hidden folders, such as the virtual environment."""
    for directory, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in {"__pycache__", "dist"}]
        yield from (Path(directory, name) for name in names)


@cache
def _tokens(page: Path) -> list[Token]:
    """The blocks of a page, which is parsed once however many links lead to it."""
    return MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8"))


def _inline(page: Path) -> Iterator[Token]:
    for token in _tokens(page):
        yield from [token, *(token.children or [])]


def links(page: Path) -> Iterator[str]:
    """Targets of links and images that are not addresses of other sites."""
    for token in _inline(page):
        found = [token.attrGet("href"), token.attrGet("src")]
        if token.type in {"html_inline", "html_block"}:
            found += _HTML_SOURCE.findall(token.content)
        yield from (str(target) for target in found if target and "://" not in str(target))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and GitLab give to the headings of a page."""
    titles = [
        "".join(child.content for child in inline.children or [])
        for heading, inline in pairwise(_tokens(page))
        if heading.type == "heading_open"
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> Iterator[str]:
    """Links of a page whose file or heading is missing."""
    for link in links(page):
        path, _, anchor = unquote(link).partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def test_every_link_between_pages_resolves() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    assert len(pages) > 50
    assert [f"{page.relative_to(ROOT)}: {link}" for page in pages for link in broken(page)] == []


def test_a_missing_page_or_heading_is_reported(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# The `first` heading\n\n[up](#the-first-heading) [gone](#gone)\n", "utf-8")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#the-first-heading) [c](there.md#second) ![d](no.png) [e](https://example.com/)\n\n"
        '| [f](no.md) |\n|---|\n\n<img src="none.png">\n',
        "utf-8",
    )
    assert list(broken(page)) == ["there.md#second", "no.png", "no.md", "none.png"]
    assert list(broken(tmp_path / "there.md")) == ["#gone"]


def test_every_page_that_code_mentions_exists() -> None:
    named = {
        mention
        for path in files()
        if path.suffix in _CODE and path.parent != Path(__file__).parent
        for mention in _MENTION.findall(path.read_text("utf-8"))
    }
    assert len(named) > 10
    assert [mention for mention in sorted(named) if not (ROOT / mention).is_file()] == []


def _missing(page: Path) -> Iterator[str]:
    """Paths in backquotes that are not there; NAME and KIND stand for something that the reader chooses."""
    for token in _inline(page):
        if token.type in {"code_inline", "fence"}:
            paths = (path for path in _PATH.findall(token.content) if "NAME" not in path and "KIND" not in path)
            yield from (path for path in paths if not (ROOT / path).exists())


def test_every_path_that_pages_name_exists() -> None:
    pages = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert [f"{page.relative_to(ROOT)}: {path}" for page in pages for path in _missing(page)] == []
