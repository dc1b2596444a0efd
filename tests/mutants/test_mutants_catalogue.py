import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from mutants.catalogue import CATALOGUE
from mutants.mutant import DoesNotApplyError, Edit, Mutant
from mutants.tree import ROOT, copy
from mutants.trial import CHECKS
from simulator.verdict import Failure

FORMER_BLIND_SPOTS = (
    "stops-falsely",
    "stops-with-one-worker-too-many",
    "never-excludes",
    "loses-every-notice",
    "loses-one-notice-of-each-group",
    "announces-late",
    "never-stops",
    "never-releases-a-healthy-host",
    "keeps-withdrawn-hosts-excluded",
)
"""Most of these have once passed the demo."""

IN_CI = {
    "never-stops",
    "stops-falsely",
    "keeps-withdrawn-hosts-excluded",
    "counts-a-failure-as-a-save",
    "keeps-ranks-by-name",
}

FOLDERS = (
    "supervisor/decide",
    "supervisor/control",
    "supervisor/ingest",
    "supervisor/fanout",
    "supervisor/store",
    "node_agent",
    "sdk/kubeai/elastic/commands",
)


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_product(mutant: Mutant) -> None:
    """Each text that it replaces is there exactly once, and what comes out of it is Python and something else."""
    for file, text in mutant.changed(ROOT).items():
        assert text != (ROOT / file).read_text(encoding="utf-8")


def mutated(root: Path) -> list[Path]:
    """A copy of the product with each changed file as a further module of its package; returns these files."""
    copy(root)
    shutil.copy(ROOT / "pyproject.toml", root)
    return [
        put_beside(root / file, mutant.name, text)
        for mutant in CATALOGUE
        for file, text in mutant.changed(ROOT).items()
    ]


def test_the_mutants_have_no_undefined_names(tmp_path: Path) -> None:
    """A misspelt name would crash the product, and demo and replay would take the crash for the defect."""
    call = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--quiet", "--select", "F821"]
    found = subprocess.run([*call, *mutated(tmp_path)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


# mypy takes as long as fifty other tests. Short runs find names without a definition above, and `make mutants` crashes.
@pytest.mark.long
def test_the_mutants_have_no_type_errors(tmp_path: Path) -> None:
    """Each changed file is checked as a whole."""
    assert type_errors(tmp_path, *mutated(tmp_path)) == ""


def test_a_misspelt_name_in_a_mutant_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.mypy]\nstrict = true\n", encoding="utf-8")
    (tmp_path / "file.py").write_text("a = 1\n", encoding="utf-8")
    text = mutant(Edit("file.py", "1", "self.said")).changed(tmp_path)["file.py"]
    assert 'Name "self" is not defined' in type_errors(tmp_path, put_beside(tmp_path / "file.py", "wrong", text))


def put_beside(file: Path, name: str, text: str) -> Path:
    beside = file.with_name(f"{file.stem}__{name.replace('-', '_')}.py")
    beside.write_text(text, encoding="utf-8")
    return beside


def type_errors(root: Path, *files: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *(str(file.relative_to(root)) for file in files)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return result.stdout + result.stderr


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.name)
def test_a_mutant_names_its_symptom(mutant: Mutant) -> None:
    """A check with a judge shows that it violates a demand, or a test that exists fails."""
    assert mutant.shown_by
    checks = {check for check in mutant.shown_by if isinstance(check, str)}
    assert checks <= {check.name for check in CHECKS}
    assert bool(checks) == bool(mutant.violates)
    assert Failure.UNFINISHED not in mutant.violates
    for test in mutant.tests:
        file, _, name = test.id.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")
        assert test.symptom


def test_there_are_many_mutants_of_every_part() -> None:
    """Each has a name of its own. CI tries one of each sort of defect."""
    names = Counter(mutant.name for mutant in CATALOGUE)
    assert names.most_common(1)[0][1] == 1
    assert len(names) >= 25
    assert set(FORMER_BLIND_SPOTS) <= set(names)
    assert {mutant.name for mutant in CATALOGUE if mutant.in_ci} == IN_CI
    files = [file for mutant in CATALOGUE for file in mutant.files]
    assert [folder for folder in FOLDERS if not any(file.startswith(folder) for file in files)] == []


def mutant(*edits: Edit) -> Mutant:
    return Mutant(name="wrong", breaks="Is wrong.", edits=edits, violates=())


@pytest.mark.parametrize(("old", "count"), [("gone", 0), ("1", 2)])
def test_a_mutant_that_does_not_fit_is_an_error(tmp_path: Path, old: str, count: int) -> None:
    """That names the mutant, the file and how often the text is there; nothing is written."""
    (tmp_path / "file.py").write_text("a = 1\nb = 1\n", encoding="utf-8")
    with pytest.raises(DoesNotApplyError, match=f"wrong: the text is {count} times in file.py, not once"):
        mutant(Edit("file.py", old, "2")).apply(tmp_path)
    assert (tmp_path / "file.py").read_text(encoding="utf-8") == "a = 1\nb = 1\n"


def test_a_mutant_that_is_no_python_is_an_error(tmp_path: Path) -> None:
    """It would crash the product, which says nothing about the judge."""
    (tmp_path / "file.py").write_text("a = 1\n", encoding="utf-8")
    with pytest.raises(SyntaxError):
        mutant(Edit("file.py", "= 1", "=")).apply(tmp_path)


def test_several_edits_of_one_file_add_up(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a = 1\n", encoding="utf-8")
    mutant(Edit("file.py", "1", "2"), Edit("file.py", "a = 2", "b = 2")).apply(tmp_path)
    assert (tmp_path / "file.py").read_text(encoding="utf-8") == "b = 2\n"
