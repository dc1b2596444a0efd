"""The form above a long table: what it reads of an address, and which rows it selects."""

from dataclasses import dataclass
from urllib.parse import parse_qsl

import pytest

from supervisor.ingest.errors import MalformedError
from supervisor.observability.page.history_form import MAX_LETTERS
from supervisor.observability.page.tables import TableColumn, TableFilter, TableForm, TableLayout, listed


@dataclass(frozen=True)
class _Row:
    name: str
    size: int | None
    team: str = ""


_LAYOUT: TableLayout[_Row] = TableLayout(
    columns={"name": TableColumn("Name", lambda row: row.name), "size": TableColumn("Size", lambda row: row.size)},
    filters={"even": TableFilter("which are", {"yes": "even"}, lambda row, _: (row.size or 0) % 2 == 0)},
    exact={"team": lambda row: row.team},
    words=lambda row: f"{row.name} {row.team}",
)
_ROWS = [_Row(f"r{number:03}", number or None, "a" if number < 120 else "b") for number in range(240)]


def _names(form: TableForm) -> list[str]:
    return [row.name for row in listed(_ROWS, form, _LAYOUT).rows]


def test_filters_words_order_and_pages_combine() -> None:
    given = {"words": "R1 ", "even": "yes", "team": "b", "sort": "size", "order": "down", "page": "1"}
    form = TableForm.read(given, _LAYOUT)
    assert _names(form) == [f"r{number}" for number in range(198, 119, -2)]
    assert TableForm.read(dict(parse_qsl(form.address, keep_blank_values=True)), _LAYOUT) == form


def test_pages_join_without_a_gap_and_the_last_one_is_shown_for_any_later() -> None:
    form = TableForm.empty(_LAYOUT)
    assert [name for page in (1, 2, 3) for name in _names(form.at(page))] == [row.name for row in _ROWS]
    shown = listed(_ROWS, form.at(99), _LAYOUT)
    assert (shown.page, shown.pages, shown.first, len(shown.rows), shown.found) == (3, 3, 201, 40, 240)


def test_a_column_is_sorted_the_other_way_when_it_is_asked_for_again() -> None:
    """What is unknown comes last either way."""
    up = TableForm.empty(_LAYOUT).at(2).by("size")
    assert (up.descending, up.page, up.by("size").descending, up.by("name").descending) == (False, 1, True, False)
    for form, first in ((up, "r001"), (up.by("size"), "r239")):
        assert _names(form)[0] == first
        assert _names(form.at(3))[-1] == "r000"


def test_nothing_found_is_one_empty_page() -> None:
    shown = listed(_ROWS, TableForm.read({"words": "none"}, _LAYOUT), _LAYOUT)
    assert (shown.rows, shown.found, shown.total, shown.pages) == ([], 0, 240, 1)


@pytest.mark.parametrize(
    "given",
    [
        {"sort": "secret"},
        {"order": "sideways"},
        {"even": "no"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "1_0"},
        {"page": "\N{SUPERSCRIPT TWO}"},
        {"page": "9" * 5000},
        {"words": "x" * (MAX_LETTERS + 1)},
        {"team": "x" * (MAX_LETTERS + 1)},
    ],
)
def test_an_address_that_asks_for_what_is_not_offered_is_refused_in_a_sentence(given: dict[str, str]) -> None:
    with pytest.raises(MalformedError, match=r"\.$"):
        TableForm.read(given, _LAYOUT)
