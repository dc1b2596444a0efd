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


def test_measured_examples_have_a_row() -> None:
    measured = set(json.loads(COSTS.read_text(encoding="ascii")))
    assert measured >= {each.example for each in ALL if each.lock in {"frameworks.txt", "jax.txt", "tensorflow.txt"}}
    assert measured <= {each.example for each in ALL}
