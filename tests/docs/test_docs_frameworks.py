"""The pages on frameworks say what their tests show, and with which versions."""

import json
from pathlib import Path

from tests.frameworks.frameworks_support import ALL, COSTS, costs_table, table

_ROOT = Path(__file__).parents[2]
_TESTS = _ROOT / "tests" / "frameworks"


def test_the_pages_have_the_tables() -> None:
    """`python -m tests.frameworks.frameworks_support` prints them."""
    for page, lines in (
        ("docs/guide/frameworks.md", table()),
        ("docs/guide/frameworks.md", costs_table()),
    ):
        assert "\n".join(lines) in (_ROOT / page).read_text(encoding="utf-8"), page


def test_each_proof_is_a_test() -> None:
    missing = [
        proof.test
        for framework in ALL
        for proof in framework.proofs.values()
        if f"def {proof.test.partition('::')[2]}(" not in (_TESTS / proof.file).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_each_example_of_torch_is_measured() -> None:
    with_torch = {framework.example for framework in ALL if framework.lock == "frameworks.txt"}
    assert with_torch == set(json.loads(COSTS.read_text(encoding="ascii")))
