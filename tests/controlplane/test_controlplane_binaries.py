import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.testkit.controlplane.binaries import (
    ASSETS,
    KUBERNETES,
    BinaryNotBuilt,
    BinaryProgram,
    HubProgram,
    binaries,
    build,
)
from tests.testkit.controlplane.procfs import waits_for_a_lock
from tests.testkit.waiting import wait_until

_HERE = Path(__file__).parents[1] / "testkit" / "controlplane"
_GO = """#!/bin/sh
if [ "$1" = env ]; then echo ${FAKE_VERSION:-go1.24.0}; exit; fi
if [ "$1" = list ]; then [ "$3" = "{{.Module.Dir}}" ] && echo "$FAKE_MODULES" || echo example.com/one; exit; fi
echo "$*" >> "$FAKE_BUILT"
while [ -e "${FAKE_BUSY:-/dev/null/none}" ]; do sleep 0.02; done
while [ "$1" != -o ]; do shift; done
[ "${2##*/}" = "$FAKE_DEADLY" ] && kill -9 $PPID
[ "${2##*/}" = "$FAKE_WRONG" ] && { echo undefined: everything >&2; exit 1; }
mkdir -p "${2%/*}" && echo built > "$2"
"""


@pytest.fixture
def workshop(tmp_path: Path) -> Path:
    """A directory with a stand-in for Go, a cache, and a copy of the builder and its pins."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(_GO, encoding="utf-8")
    go.chmod(0o755)
    shutil.copytree(_HERE / "pins", tmp_path / "pins")
    shutil.copy(_HERE / "binaries.py", tmp_path)
    (tmp_path / "busy").touch()
    return tmp_path


def test_all_programs_are_built_once(workshop: Path) -> None:
    """Two builders at once and a third later: each program is compiled once, and all are told the same paths."""
    first = _start(workshop, "binaries.py", FAKE_BUSY=str(workshop / "busy"))
    wait_until(lambda: len(_built(workshop)) == 1, "the first compiles")
    second = _start(workshop, "binaries.py")
    wait_until(lambda: waits_for_a_lock(second.pid), "the second waits for the first")
    (workshop / "busy").unlink()
    told = first.communicate()[0]
    assert second.communicate() == (told, "another process builds or installs it: waiting\n")
    assert _run(workshop).stdout == told
    assert sorted(Path(line).name for line in told.splitlines()) == sorted(BinaryProgram)
    assert all(Path(line).read_text(encoding="utf-8") == "built\n" for line in told.splitlines())
    assert len(_built(workshop)) == len(BinaryProgram)


def test_other_pins_are_built_beside_the_old_ones(workshop: Path) -> None:
    """A changed pin of kwok builds kwok alone again, and leaves the old one to checkouts that still want it."""
    before = _run(workshop).stdout.splitlines()
    with (workshop / "pins" / "kwok" / "go.sum").open("a") as pins:
        pins.write("\n")
    after = _run(workshop).stdout.splitlines()
    changed = [Path(new).name for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [BinaryProgram.KWOK]
    assert all(Path(path).exists() for path in before)
    assert len(_built(workshop)) == len(BinaryProgram) + 1


def test_another_version_is_built_beside_the_usual_one(workshop: Path) -> None:
    """All of it but kwok, which serves every version."""
    usual, other = _run(workshop).stdout.splitlines(), _run(workshop, KUBERNETES="1.30").stdout.splitlines()
    assert [Path(path).name for path in {*usual} & {*other}] == [BinaryProgram.KWOK]
    assert all("kubernetes-1.30-" in path for path in {*other} - {*usual})


def test_a_version_without_pins_is_named_in_a_sentence(workshop: Path) -> None:
    failed = _run(workshop, KUBERNETES="1.2")
    assert failed.stderr == "no control plane: KUBERNETES=1.2 is none of 1.30, 1.36\n"
    assert not _built(workshop)


def test_a_killed_build_leaves_nothing_half(workshop: Path) -> None:
    """What it had built is built again, as nobody can tell how much of it is there, and its remains are gone."""
    assert _run(workshop, FAKE_DEADLY="kube-scheduler").returncode == -9
    [left] = _cache(workshop).glob(".building-*")
    assert not list(_cache(workshop).glob("kubernetes-*"))
    assert _run(workshop).returncode == 0
    assert not left.exists()


def test_a_build_that_fails_says_so_in_a_sentence(workshop: Path) -> None:
    failed = _run(workshop, FAKE_WRONG="kube-apiserver")
    assert failed.stderr.splitlines()[-1] == ("no control plane: kube-apiserver cannot be built: undefined: everything")
    assert not list(_cache(workshop).glob("[!.]*"))


def test_without_go_it_says_so_in_a_sentence(workshop: Path) -> None:
    (workshop / "bin" / "go").unlink()
    failed = _run(workshop, PATH=str(workshop / "bin"))
    said = "no control plane: a control plane is built with Go 1.24 or later, and there is none on the PATH\n"
    assert failed.stderr == said


@pytest.mark.parametrize("version", ["go1.23.12", "go1.9", "devel"])
def test_go_that_is_too_old_is_named_in_a_sentence(workshop: Path, version: str) -> None:
    failed = _run(workshop, FAKE_VERSION=version)
    said = "no control plane: a control plane is built with Go 1.24 or later, and the one on the PATH is"
    assert failed.stderr == f"{said} {version}\n"
    assert not _built(workshop)


def test_programs_that_somebody_has_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSETS, str(tmp_path / "assets"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for path in [*(tmp_path / "assets" / program for program in BinaryProgram), tmp_path / "bin" / BinaryProgram.KWOK]:
        path.parent.mkdir(exist_ok=True)
        path.touch(mode=0o755)
    assert set(build().values()) == {tmp_path / "assets" / program for program in BinaryProgram}
    (tmp_path / "assets" / BinaryProgram.KWOK).unlink()
    assert build()[BinaryProgram.KWOK] == binaries()[BinaryProgram.KWOK] == tmp_path / "bin" / BinaryProgram.KWOK


def test_a_directory_of_programs_that_lacks_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSETS, str(tmp_path))
    (tmp_path / BinaryProgram.ETCD).touch()
    said = f"{ASSETS}={tmp_path} has no kube-apiserver; without {ASSETS} all are built"
    for place in (build, binaries):
        with pytest.raises(BinaryNotBuilt, match=said):
            place()


def test_a_hub_is_its_programs_and_its_module(workshop: Path) -> None:
    """Built once and apart from the control plane; one that nobody has built is missed."""
    ask = partial(_python, workshop, "-c", "from binaries import hub; print(hub().module)")
    assert "the hub is not built; `make hub` does it" in ask(FAKE_MODULES="here").stderr
    told = _run(workshop, "hub").stdout
    assert _run(workshop, "hub").stdout == told
    assert [Path(line).name for line in told.splitlines()] == list(HubProgram)
    assert len(_built(workshop)) == len(HubProgram)
    assert ask(FAKE_MODULES="here").stdout == "here\n"


@pytest.fixture
def operators(workshop: Path) -> Path:
    """The pins of two operators, the first of which is to be edited, and the module from which both are built."""
    pins = workshop / "pins" / "operators"
    shutil.rmtree(pins)
    for name in ("one", "two"):
        (pins / name).mkdir(parents=True)
        (pins / name / "go.mod").write_text(f"module x\n\ngo 1.24\n\ntool example.com/{name}/cmd\n", encoding="utf-8")
        (pins / name / "go.sum").touch()
    (pins / "one" / "edits.json").write_text('{"main.go": {"port = 80": "port = 0"}}', encoding="utf-8")
    (workshop / "modules").mkdir()
    (workshop / "modules" / "main.go").write_text("const port = 80\n", encoding="utf-8")
    return pins


def test_each_operator_that_has_pins_is_built_once(workshop: Path, operators: Path) -> None:
    """By the `tool` line of its go.mod alone."""
    told = _run(workshop, "operators").stdout
    assert _run(workshop, "operators").stdout == told
    assert [Path(line).name for line in told.splitlines()] == sorted(path.name for path in operators.iterdir())
    assert [line.rpartition(" ")[2] for line in _built(workshop)] == ["example.com/one/cmd", "example.com/two/cmd"]


def test_an_operator_is_built_from_an_edited_copy_of_its_module(workshop: Path, operators: Path) -> None:
    """Only where it has edits; an edit that fits no more fails the build instead of being left out."""
    _run(workshop, "operators")
    assert ["-modfile=" in line for line in _built(workshop)] == [True, False]
    (operators / "one" / "edits.json").write_text('{"main.go": {"port = 81": "port = 0"}}', encoding="utf-8")
    said = _run(workshop, "operators").stderr.splitlines()[-1]
    assert said == "no control plane: operators/one: main.go has no 'port = 81'"


def test_an_operator_is_its_program_and_its_module(workshop: Path, operators: Path) -> None:
    """One that nobody has built is missed by its name, and without Go nothing is."""
    assert operators
    code = "from binaries import operator; print(operator('two'))"
    ask = partial(_python, workshop, "-c", code)
    assert "two is not built; `make operators` does it" in ask().stderr
    program = _run(workshop, "operators").stdout.splitlines()[1]
    assert ask().stdout == f"OperatorBinary(program={Path(program)!r}, module={workshop / 'modules'!r})\n"
    (workshop / "bin" / "go").unlink()
    assert "there is none on the PATH" in ask(PATH=str(workshop / "bin")).stderr


def _run(workshop: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _python(workshop, "binaries.py", *words, **environment)


def _python(workshop: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    process = _start(workshop, *words, **environment)
    said, wrong = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, said, wrong)


def _start(workshop: Path, *words: str, **changes: str) -> subprocess.Popen[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if name not in (ASSETS, KUBERNETES)},
        "PATH": f"{workshop / 'bin'}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(workshop / "cache"),
        "FAKE_BUILT": str(workshop / "built"),
        "FAKE_MODULES": str(workshop / "modules"),
        **changes,
    }
    command = [sys.executable, *words]
    return subprocess.Popen(
        command, env=environment, cwd=workshop, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _cache(workshop: Path) -> Path:
    return workshop / "cache" / "elastic-job-supervisor" / "controlplane"


def _built(workshop: Path) -> list[str]:
    built = workshop / "built"
    return built.read_text(encoding="utf-8").splitlines() if built.exists() else []
