"""A tiny project in place of ours: a product of one line, and a simulator that judges it."""

from pathlib import Path

from mutants.mutant import Edit, FailingTest, Mutant
from mutants.suite import Setting
from mutants.trial import MutantCheck
from simulator.verdict import Failure

PACKAGES = (
    "elastic_job_supervisor",
    "job_supervisor",
    "node_agent",
    "servicekit",
    "proto/reclaim",
    "proto/reclaim/v1",
    "sdk/kubeai/elastic",
)

SIMULATOR = """
import json, sys, time
from pathlib import Path
from supervisor.product import ANSWER

LOST = {"failure": "step lost", "detail": "step 7 was applied again"}
FALSE = {"failure": "false stop", "detail": "STOP of run 1"}
UNFINISHED = {"failure": "unfinished", "detail": "step 9 was never reached"}

def end(*failures):
    crashes = ["supervisor: NameError: no"] if ANSWER == "misspelt" else []
    acts = [{"verdict": None, "crashes": []}, {"verdict": {"failures": failures}, "crashes": crashes}]
    Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps({"scenarios": acts}))
    print("judged")
    sys.exit(1)

if ANSWER == "crash":
    raise RuntimeError("the product crashed")
if ANSWER == "unfinished":
    end(UNFINISHED)
if ANSWER == "unjudged":
    end()
if ANSWER == "other":
    end(FALSE)
if ANSWER == "hang":
    print("waiting", flush=True)
    time.sleep(600)
if ANSWER != "right" and sys.argv[1] not in ANSWER:
    end(LOST, FALSE, LOST, UNFINISHED)
"""

TESTS = """
from supervisor.product import ANSWER

def test_promise():
    assert ANSWER == "right", f"the step of {ANSWER} is lost"

def test_another_promise():
    assert ANSWER == "right", "no such thing"

def test_name():
    if ANSWER != "right":
        print(undefined)
"""

CHECKS = (MutantCheck("demo", ("demo",)), MutantCheck("replay", ("replay",)))


def project(root: Path, answer: str = "right") -> Path:
    for name in (*PACKAGES, "supervisor", "simulator"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "__init__.py").touch()
    (root / "simulator" / "__main__.py").write_text(SIMULATOR, encoding="utf-8")
    (root / "supervisor" / "product.py").write_text(f'ANSWER = "{answer}"\n', encoding="utf-8")
    (root / "tests").mkdir()
    (root / "tests" / "test_promises.py").write_text(TESTS, encoding="utf-8")
    (root / "pyproject.toml").touch()
    (root / "supervisor" / "unused.py").write_text("VALUE = 1\n", encoding="utf-8")
    return root


def setting(root: Path) -> Setting:
    return Setting(logs=root / "logs", checks=CHECKS, source=root)


def answering(answer: str, shown_by: tuple[str | FailingTest, ...] = ("demo", "replay")) -> Mutant:
    """A mutant that lets the product return this answer, which must lose a step.

    The demo does not notice "blind demo".
    """
    edit = Edit("supervisor/product.py", '"right"', f'"{answer}"')
    return Mutant(
        name=answer.replace(" ", "-"),
        breaks="Is wrong.",
        edits=(edit,),
        violates=(Failure.STEP_LOST,),
        shown_by=shown_by,
    )
