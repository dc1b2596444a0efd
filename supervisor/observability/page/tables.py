"""Reads what the form above a long table asks for, and selects the rows of one page of it. Pure.

Everything works by links and a GET form, so that it needs no scripts and an address can be sent to somebody else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from servicekit.bounds import whole
from supervisor.ingest.errors import MalformedError
from supervisor.observability.page.contents import MAX_ROWS
from supervisor.observability.page.history_form import MAX_LETTERS

R = TypeVar("R")

_MAX_PAGE = 100_000
"""More pages than any table has: 10,000 nodes are 100 of them."""

ALL = "all"
"""The choice of a filter that lets every row pass."""


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[R]):
    """A column by which rows can be sorted; `order` returns None for a row of which the value is unknown."""

    title: str
    order: Callable[[R], Any]


@dataclass(frozen=True, slots=True)
class TableFilter(Generic[R]):
    """A filter with fixed choices. Each has its name for people; `passes` says whether a row has the chosen value."""

    label: str
    choices: Mapping[str, str]
    passes: Callable[[R, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout(Generic[R]):
    """What can be asked of a table.

    Attributes:
        columns: The columns by key, the first one being the order in which a table is shown unless asked otherwise.
        filters: The filters by the name of their field.
        exact: The fields with any text, such as a namespace, that have to be equal; empty stands for all.
        words: Returns the text of a row in which words are searched.
    """

    columns: Mapping[str, TableColumn[R]]
    filters: Mapping[str, TableFilter[R]] = field(default_factory=dict)
    exact: Mapping[str, Callable[[R], str]] = field(default_factory=dict)
    words: Callable[[R], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableForm:
    """The fields of the form. `chosen` has the values of filters and of exact fields; `page` counts from 1."""

    words: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    sort: str
    descending: bool = False
    page: int = 1

    @classmethod
    def read(cls, given: Mapping[str, str], layout: TableLayout[Any]) -> "TableForm":
        """Reads the query of an address.

        Raises:
            MalformedError: A field has none of its values. The message is a sentence.
        """
        chosen = {name: given.get(name, ALL) for name in layout.filters}
        chosen |= {name: given.get(name, "").strip() for name in layout.exact}
        form = cls(
            words=given.get("words", "").strip(),
            chosen=chosen,
            sort=given.get("sort", next(iter(layout.columns))),
            descending=given.get("order", "up") == "down",
        )
        offered = all(chosen[name] in (ALL, *one.choices) for name, one in layout.filters.items())
        if not offered or form.sort not in layout.columns or given.get("order", "up") not in ("up", "down"):
            raise MalformedError("This address asks for something that the form does not offer.")
        if max(len(form.words), *(len(chosen[name]) for name in layout.exact), 0) > MAX_LETTERS:
            raise MalformedError(f"A name has at most {MAX_LETTERS} letters.")
        return form.at(_page(given.get("page", "1")))

    @classmethod
    def empty(cls, layout: TableLayout[Any]) -> "TableForm":
        """The form of a table of which nothing is asked."""
        return cls.read({}, layout)

    def at(self, page: int) -> "TableForm":
        """The same question about another page."""
        return replace(self, page=page)

    def by(self, column: str) -> "TableForm":
        """The same question in the order of a column: the other direction if it has that order already."""
        return replace(self, sort=column, descending=self.sort == column and not self.descending, page=1)

    @property
    def address(self) -> str:
        """The query of the address that asks the same."""
        page = {} if self.page == 1 else {"page": str(self.page)}
        order = {"sort": self.sort, "order": "down" if self.descending else "up"}
        return urlencode({"words": self.words, **self.chosen, **order, **page})


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage(Generic[R]):
    """The rows of one page: `found` of `total` rows are what the form asks for, on so many `pages`."""

    rows: Sequence[R]
    found: int
    total: int
    page: int
    pages: int

    @property
    def first(self) -> int:
        """The number of the first row of the page, from 1."""
        return (self.page - 1) * MAX_ROWS + 1


def listed(rows: Iterable[R], form: TableForm, layout: TableLayout[R]) -> TablePage[R]:
    """Returns the page that a form asks for; the last one if there are fewer. Unknown values come last either way."""
    everything = found = list(rows)
    for name, one in layout.filters.items():
        if (choice := form.chosen[name]) != ALL:
            found = [row for row in found if one.passes(row, choice)]
    for name, value in layout.exact.items():
        if wanted := form.chosen[name]:
            found = [row for row in found if value(row) == wanted]
    if words := form.words.lower().split():
        found = [row for row in found if _has(layout.words(row).lower(), words)]
    order = layout.columns[form.sort].order
    values = [order(row) for row in found]
    known = [place for place, value in enumerate(values) if value is not None]
    known.sort(key=values.__getitem__, reverse=form.descending)
    unknown = (place for place, value in enumerate(values) if value is None)
    ordered = [found[place] for place in (*known, *unknown)]
    pages = max(1, -(-len(ordered) // MAX_ROWS))
    page = min(form.page, pages)
    return TablePage(
        rows=ordered[(page - 1) * MAX_ROWS : page * MAX_ROWS],
        found=len(ordered),
        total=len(everything),
        page=page,
        pages=pages,
    )


def _has(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)


def _page(given: str) -> int:
    page = whole(given, _MAX_PAGE)
    if not page:
        raise MalformedError("This address names no page of the table.")
    return page
