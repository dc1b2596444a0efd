import subprocess
from pathlib import Path

import pytest

from mutants.mutant import Edit, Mutant
from mutants.tree import ForeignCodeError, Tree, copy, copy_compiled
from simulator.cloud.process import script

HOSTS = "sdk/kubeai/elastic/commands/discover_hosts.py"
COMMAND = "job_supervisor/cli/command.py"
SHOUTING = Mutant(
    name="shouts",
    breaks="Says so.",
    edits=(Edit(HOSTS, "    problems: list[str] = []\n", "    problems: list[str] = []\n    print('MUTATED')\n"),),
    violates=(),
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return copy(tmp_path)


def output_of(tree: Tree, *command: str) -> str:
    """What a command says in the environment of a tree, in a directory that is not the tree's."""
    elsewhere = tree.root / "elsewhere"
    elsewhere.mkdir()
    return subprocess.check_output(command, env=tree.environment(elsewhere), cwd=elsewhere, text=True)


def test_an_installed_command_runs_the_tree(tree: Tree) -> None:
    SHOUTING.apply(tree.root)
    assert "MUTATED" in output_of(tree, script("kubeai-discover-hosts"), "--hosts-file", "none")


def test_a_file_counts_as_imported_once_a_process_has_done_so(tree: Tree) -> None:
    """That is how a mutant whose file no process reads is found; the copy brings nothing compiled along."""
    assert not list(tree.root.rglob("*.pyc"))
    output_of(tree, script("kubeai-discover-hosts"), "--help")
    assert tree.imported(HOSTS)
    assert not tree.imported(COMMAND)


def test_a_changed_file_counts_as_imported_only_by_processes_of_its_own_tree(tree: Tree, tmp_path: Path) -> None:
    tree.compile()
    mutated = copy_compiled(tmp_path / "mutated", tree)
    mutated.put(SHOUTING)
    assert mutated.imported(COMMAND)
    assert not mutated.imported(HOSTS)
    assert "MUTATED" in output_of(mutated, script("kubeai-discover-hosts"), "--hosts-file", "none")
    assert mutated.imported(HOSTS)


def test_all_packages_come_from_the_tree(tree: Tree) -> None:
    tree.check_origins()


def test_a_package_from_elsewhere_is_refused(tmp_path: Path) -> None:
    """A tree without the SDK would have the installed one run, unbroken."""
    tree = copy(tmp_path)
    (tree.root / "sdk").rename(tree.root / "away")
    with pytest.raises(ForeignCodeError, match="elastic would be imported from"):
        tree.check_origins()
