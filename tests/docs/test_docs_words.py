"""Pages and the chart use the terms of the field. Decision records and the changelog keep the words of their time."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_docs_links import files

ROOT = Path(__file__).parents[2]
_TERMS = {
    r"nine of ten": "p90",
    r"99 of 100": "p99",
    r"\bdoomed\b": "affected, or excluded",
    r"\bexchang\w+ (?:a|the|its|this) (?:certificate|CA|authority|keys?)\b": "rotate",
    r"(?<![-\w])definitions\b": "CRDs",
    r"\bpolite stop\b": "graceful shutdown",
    r"\boperator of Prometheus\b": "Prometheus Operator",
    # Nothing is on a package index, and anybody could take the names there.
    r"\bpip3? install [^`\n]*(?<![./\w-])(?:kubeai(?:-elastic)?|elastic-job-supervisor)\b": "pip install ./sdk",
}


def _other_words(text: str) -> Iterator[str]:
    for pattern, term in _TERMS.items():
        yield from (f"{found[0]!r}: write {term}" for found in re.finditer(pattern, text, re.IGNORECASE))


def _is_for_users(path: Path) -> bool:
    place = path.relative_to(ROOT)
    kept = place.parts[0] == "tests" or place.parts[:2] == ("docs", "adr") or place.name == "CHANGELOG.md"
    in_chart = place.parts[0] == "charts" and path.suffix in {".yaml", ".txt"}
    return not kept and (path.suffix == ".md" or in_chart)


def test_pages_and_the_chart_use_the_terms_of_the_field() -> None:
    pages = [path for path in files() if _is_for_users(path)]
    assert len(pages) > 80
    assert [
        f"{page.relative_to(ROOT)}: {word}" for page in pages for word in _other_words(page.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "99 of 100 calls",
        "the Doomed hosts",
        "To exchange a certificate,",
        "apply the definitions",
        "pip install kubeai-elastic",
    ],
)
def test_another_word_is_found(text: str) -> None:
    assert list(_other_words(text))
