"""The documentation site has a place for every page."""

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from tests.docs.test_docs_links import files
from tests.testkit.yaml_text import document

ROOT = Path(__file__).parents[2]
_NAV = document((ROOT / "docs" / "site-nav.yml").read_text("utf-8"))["nav"]


def _patterns(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        below = entry.values() if isinstance(entry, dict) else entry
        yield from (pattern for each in below for pattern in _patterns(each))


def _is_shown(page: PurePosixPath) -> bool:
    return page.suffix == ".md" and page.parts[0] != "tests"


def _pages() -> list[PurePosixPath]:
    return [page for path in files() if _is_shown(page := PurePosixPath(path.relative_to(ROOT).as_posix()))]


def _placed(pages: list[PurePosixPath], nav: Any) -> set[PurePosixPath]:
    """Return the pages that the navigation names."""
    patterns = list(_patterns(nav))
    return {page for page in pages if any(fnmatch(str(page), pattern) for pattern in patterns)}


def test_every_page_has_a_place_in_the_navigation() -> None:
    pages = _pages()
    assert len(pages) > 80
    assert sorted(set(pages) - _placed(pages, _NAV)) == []


def test_no_entry_of_the_navigation_is_empty() -> None:
    """Such as one that names a page which was moved or deleted."""
    pages = _pages()
    assert [each for each in _patterns(_NAV) if not any(fnmatch(str(page), each) for page in pages)] == []


def test_the_list_of_pages_names_every_guide() -> None:
    listed = (ROOT / "docs" / "README.md").read_text("utf-8")
    guides = [page for page in _pages() if page.parent.name in {"guide", "tutorials"} and ".zh-CN" not in page.name]
    assert [page.name for page in guides if f"({page.parent.name}/{page.name})" not in listed] == []


def test_every_page_that_the_navigation_names_exists() -> None:
    named = [pattern for pattern in _patterns(_NAV) if "*" not in pattern]
    assert [page for page in named if not (ROOT / page).is_file()] == []


def test_a_page_without_a_place_is_found() -> None:
    nav = [{"Home": ["README.md"]}, {"Guides": ["docs/guide/*.md"]}]
    pages = [PurePosixPath(page) for page in ("README.md", "docs/README.md", "docs/guide/cli.md", "sdk/README.md")]
    assert _placed(pages, nav) == {PurePosixPath("README.md"), PurePosixPath("docs/guide/cli.md")}
