"""Hooks of the site's build: programs get each page as Markdown, and llms.txt lists all in the menu's order.

MkDocs loads this file by its path. The form of llms.txt is that of https://llmstxt.org.
"""

# ruff: noqa: INP001

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_navigation: list[Any] = []


def on_nav(nav: Any, **_given: Any) -> Any:
    """Keep the menu, which is complete here, for the end of the build."""
    _navigation[:] = nav.items
    return nav


def on_post_build(config: Any, **_given: Any) -> None:
    """Write the files beside the pages."""
    pages, site = Path(config.docs_dir), Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}.", *_listed(_navigation, 2)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for source in pages.rglob("*.md"):
        target = site / source.relative_to(pages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _listed(items: list[Any], level: int) -> Iterator[str]:
    pages = [item for item in items if item.is_page]
    if pages:
        yield ""
        yield from (f"- [{page.title}]({page.file.src_uri})" for page in pages)
    for section in (item for item in items if item.is_section):
        yield from ("", f"{'#' * level} {section.title}")
        yield from _listed(section.children, level + 1)
