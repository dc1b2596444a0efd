import asyncio
from pathlib import Path

import pytest

from mutants import report
from mutants.mutant import DoesNotApplyError, Edit, FailingTest, Mutant
from mutants.suite import UNBROKEN, Trials, play
from mutants.tree import copy
from mutants.trial import Ending, MutantFinding, MutantOutcome, run
from tests.mutants.mutants_project import CHECKS, answering, project, setting
from tests.testkit.waiting import until

FALSE_STOP = MutantFinding("false stop", "STOP of run 1", 1)


async def played(root: Path, *mutants: Mutant) -> list[Trials]:
    told: list[Trials] = []
    found = await play(mutants, setting(root), told.append)
    assert sorted(each.mutant.name for each in told) == sorted(each.mutant.name for each in found)
    return found


async def endings(root: Path, *mutants: Mutant) -> list[list[Ending]]:
    return [[each.ending for each in one.outcomes] for one in await played(root, *mutants)]


async def test_a_mutant_that_both_fail_is_caught(tmp_path: Path) -> None:
    """The unbroken product is tried first; the kinds of failures are told, each once."""
    first, caught = await played(project(tmp_path), answering("wrong"))
    assert first.mutant is UNBROKEN
    assert first.ok
    assert caught.ok
    kinds = [[finding.kind for finding in outcome.findings] for outcome in caught.outcomes]
    assert kinds == [["step lost", "false stop", "unfinished"]] * len(CHECKS)
    assert "        step lost: step 7 was applied again (and 1 more)" in list(report.lines(caught))
    assert (tmp_path / "logs" / "wrong-demo.log").read_text(encoding="utf-8") == "judged\n"


async def test_a_mutant_that_one_passes_is_not_caught(tmp_path: Path) -> None:
    found = await played(project(tmp_path), answering("blind demo"), answering("wrong"))
    assert [each.ok for each in found] == [True, False, True]
    assert "1 of 2 mutants were not caught by every check: blind-demo" in report.conclusion(found, 60.0)


async def test_nothing_is_tried_where_the_unbroken_product_fails(tmp_path: Path) -> None:
    """Then everything fails, and the mutants would all look caught."""
    found = await played(
        project(tmp_path, answer="wrong"), Mutant(name="any", breaks="Is wrong.", edits=(), violates=())
    )
    assert [each.ok for each in found] == [False]
    assert "the unbroken product must pass" in report.conclusion(found, 60.0)


@pytest.mark.parametrize("answer", ["crash", "unjudged", "unfinished"])
async def test_a_crash_says_nothing_about_the_judge(tmp_path: Path, answer: str) -> None:
    """Neither does a job that is merely unfinished, as it is after a crash, too."""
    assert (await endings(project(tmp_path), answering(answer)))[1] == [Ending.BROKE_OFF, Ending.BROKE_OFF]


async def test_a_mutant_that_shows_another_symptom_is_not_caught(tmp_path: Path) -> None:
    """The verdict must name the demand that the mutant is meant to violate."""
    found = await played(project(tmp_path), answering("other"))
    assert [outcome.ending for outcome in found[1].outcomes] == [Ending.OTHER_SYMPTOM, Ending.OTHER_SYMPTOM]
    assert not found[1].ok


async def test_a_mutant_with_an_error_of_programming_is_not_caught(tmp_path: Path) -> None:
    """A NameError stops the product in many ways, of which one looks like the symptom."""
    found = await played(project(tmp_path), answering("misspelt"))
    assert [outcome.ending for outcome in found[1].outcomes] == [Ending.CRASHED, Ending.CRASHED]
    assert "crashed: supervisor: NameError: no" in "\n".join(report.lines(found[1]))


async def test_a_mutant_is_tried_by_the_checks_that_show_it(tmp_path: Path) -> None:
    """The unbroken product is tried by all that any chosen mutant needs."""
    found = await played(project(tmp_path), answering("blind demo", shown_by=("replay",)))
    assert [[outcome.check for outcome in trials.outcomes] for trials in found] == [["replay"], ["replay"]]
    assert found[1].ok


async def test_a_mutant_may_be_shown_by_tests(tmp_path: Path) -> None:
    """Only by an assertion with the symptom: another one shows another defect, and an error shows none."""
    names = ("test_promise", "test_another_promise", "test_name", "test_that_is_gone")
    shown_by = tuple(FailingTest(f"tests/test_promises.py::{name}", "the step of wrong is lost") for name in names)
    source, found = project(tmp_path / "source", answer="wrong"), []
    for test in shown_by:
        tree = copy(tmp_path / test.name, source)
        tree.put_tests(source)
        found.append(await run(test, tree, answering("wrong", shown_by), tmp_path / "log"))
    assert [each.ending for each in found] == [Ending.FAILED, Ending.OTHER_SYMPTOM, Ending.CRASHED, Ending.BROKE_OFF]
    assert [finding.kind for finding in found[0].findings] == ["the step of wrong is lost"]
    assert "NameError" in found[2].crashes[0]


async def test_a_test_is_run_on_the_unbroken_product_first(tmp_path: Path) -> None:
    """It runs on a tree of its own, without a command of the simulator."""
    test = FailingTest("tests/test_promises.py::test_promise", "the step of wrong is lost")
    found = await played(project(tmp_path), answering("wrong", (test,)))
    assert [[outcome.ending for outcome in trials.outcomes] for trials in found] == [[Ending.PASSED], [Ending.FAILED]]
    assert [trials.ok for trials in found] == [True, True]


async def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    tree = copy(tmp_path / "tree", project(tmp_path / "source", answer="hang"))
    outcome = await run(CHECKS[0], tree, UNBROKEN, tmp_path / "log", limit=1.0)
    assert outcome.ending is Ending.HUNG
    assert working_in(tree.root) == []


async def test_a_command_ends_with_the_suite(tmp_path: Path) -> None:
    tree, log = copy(tmp_path / "tree", project(tmp_path / "source", answer="hang")), tmp_path / "log"
    running = asyncio.create_task(run(CHECKS[0], tree, UNBROKEN, log))
    await until(lambda: log.exists() and "waiting" in log.read_text(encoding="utf-8"), "the check runs")
    assert working_in(tree.root)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert working_in(tree.root) == []


def working_in(directory: Path) -> list[str]:
    return [entry.name for entry in Path("/proc").iterdir() if works_in(entry, directory)]


def works_in(entry: Path, directory: Path) -> bool:
    try:
        return (entry / "cwd").readlink() == directory
    except OSError:
        return False


async def test_a_mutant_of_a_file_that_nobody_imports_is_found(tmp_path: Path) -> None:
    """It would pass for a defect that the judge does not notice."""
    mutant = Mutant(name="unused", breaks="Is wrong.", edits=(Edit("supervisor/unused.py", "1", "2"),), violates=())
    assert (await endings(project(tmp_path), mutant))[1] == [Ending.NOT_IMPORTED, Ending.NOT_IMPORTED]


async def test_a_mutant_that_does_not_fit_is_found_before_anything_is_tried(tmp_path: Path) -> None:
    with pytest.raises(DoesNotApplyError):
        await played(project(tmp_path, answer="other"), answering("wrong"))
    assert not (tmp_path / "logs").exists()


def test_the_table_shows_every_command_of_every_mutant() -> None:
    outcomes = tuple(
        MutantOutcome(check=check.name, ending=Ending.FAILED, findings=(FALSE_STOP,), last_line="Done.", seconds=12.0)
        for check in CHECKS
    )
    shown = report.table([Trials(UNBROKEN, outcomes)])
    assert shown.row_count == len(CHECKS)
    assert [column.header for column in shown.columns] == ["mutant", "check", "ended", "took"]
    assert list(report.lines(Trials(UNBROKEN, outcomes)))[1:3] == [
        "    demo   failed          12 s",
        "        false stop: STOP of run 1",
    ]
