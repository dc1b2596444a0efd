"""A mutant: a defect that is put into a copy of the product by replacing text in its files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.verdict import Failure


class DoesNotApplyError(ValueError):
    """A mutant's old text is not in its file exactly once. Adapt the mutant to the product."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text and its replacement. `file` is relative to the root of the tree."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class FailingTest:
    """A test that an assertion must end for a defect which demo and replay cannot show.

    Attributes:
        id: For pytest, relative to the root of the tree; without parameters it is the test with all of them.
        symptom: A text that the assertion's message must contain.
    """

    id: str
    symptom: str

    @property
    def name(self) -> str:
        return self.id.rpartition("::")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A defect.

    Attributes:
        name: The argument of `--only`.
        breaks: What the product does wrong, in one sentence.
        edits: The replacements.
        violates: The demands of the judge that the defect must violate. At least one of them must be in each verdict.
        shown_by: What shows the defect: names of checks with a judge, and tests.
        in_ci: Whether CI tries it.
    """

    name: str
    breaks: str
    edits: tuple[Edit, ...]
    violates: tuple[Failure, ...] = ()
    shown_by: tuple[str | FailingTest, ...] = ("demo", "replay")
    in_ci: bool = False

    @property
    def symptoms(self) -> frozenset[str]:
        """The kinds of findings that show this defect, and no other one."""
        return frozenset({*self.violates, *(test.symptom for test in self.tests)})

    @property
    def tests(self) -> tuple[FailingTest, ...]:
        return tuple(check for check in self.shown_by if isinstance(check, FailingTest))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    def apply(self, root: Path) -> None:
        """Put the defect into the tree at `root`. Raises as `changed` does."""
        for file, text in self.changed(root).items():
            (root / file).write_text(text, encoding="utf-8")

    def changed(self, root: Path) -> Mapping[str, str]:
        """Return the changed text of each file, without writing it.

        Raises:
            DoesNotApplyError: A text is missing in its file, or occurs several times.
            SyntaxError: A changed file is not valid Python.
        """
        texts = {file: (root / file).read_text(encoding="utf-8") for file in self.files}
        for edit in self.edits:
            texts[edit.file] = self._edited(edit, texts[edit.file])
        for file, text in texts.items():
            compile(text, file, "exec")
        return texts

    def _edited(self, edit: Edit, text: str) -> str:
        if (count := text.count(edit.old)) != 1:
            raise DoesNotApplyError(f"{self.name}: the text is {count} times in {edit.file}, not once:\n{edit.old}")
        return text.replace(edit.old, edit.new)
