"""The distribution as it is built, installed, and typed for its users."""

import subprocess
import sys
import textwrap
import zipfile
from email import message_from_bytes
from pathlib import Path

import kubeai.elastic

from tests.sdk.sdk_scripts import SDK, Clean

USER_SCRIPT = """
    from __future__ import annotations

    import sys
    from typing import Iterable

    import kubeai.elastic as kubeai
    from kubeai.elastic.testing import FakeSupervisor


    def train(batches: Iterable[int]) -> None:
        kubeai.init(rank=lambda: 0, sigterm=True)
        kubeai.on_notice(lambda notice: print(notice.host, notice.seconds_left))
        for step, _ in enumerate(batches):
            if kubeai.should_checkpoint():
                kubeai.checkpoint_saved(step)
            if kubeai.check_alive() == False:
                sys.exit(-1)
        known: kubeai.Notice | None = kubeai.notice()
        reason: str = kubeai.directive().reason
        stopped: bool = kubeai.directive().kind is kubeai.DirectiveKind.STOP
        left: float | None = kubeai.seconds_left()
        print(known, reason, stopped, left, FakeSupervisor().address)
"""


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def told(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return next(archive.read(path) for path in archive.namelist() if path.endswith(f".dist-info/{name}"))


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    sources = {str(path.relative_to(SDK)) for path in SDK.glob("kubeai/**/*") if path.suffix in {".py", ".typed"}}
    assert "kubeai/elastic/py.typed" in sources
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == sources


def test_it_depends_on_nothing(wheel: Path) -> None:
    """Python alone, from 3.8 on, for every platform."""
    metadata = message_from_bytes(told(wheel, "METADATA"))
    assert metadata.get_all("Requires-Dist") is None
    assert metadata["Requires-Python"] == ">=3.8"
    assert metadata["Version"] == kubeai.elastic.__version__
    assert wheel.name.endswith("-py3-none-any.whl")


def test_it_carries_its_licence(wheel: Path) -> None:
    assert told(wheel, "licenses/LICENSE") == (SDK.parent / "LICENSE").read_bytes()


def test_it_installs_alone_and_its_commands_run(wheel: Path, clean: Clean) -> None:
    assert clean.install("--no-index", str(wheel))
    assert clean.says("import kubeai.elastic; print(kubeai.elastic.__file__)").startswith(str(clean.packages))
    assert {path.name for path in clean.packages.iterdir() if "dist-info" in path.name} == {
        f"kubeai_elastic-{kubeai.elastic.__version__}.dist-info"
    }
    for command in ("kubeai-run", "kubeai-discover-hosts", "kubeai-each-host"):
        shown = subprocess.run([clean.home / "bin" / command, "--help"], check=True, capture_output=True, text=True)
        assert shown.stdout.startswith(f"usage: {command}")
        version = subprocess.run(
            [clean.home / "bin" / command, "--version"], check=True, capture_output=True, text=True
        )
        assert version.stdout == f"{command} {kubeai.elastic.__version__}\n"
    python = [str(clean.home / "bin" / "kubeai-python"), "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(python, check=True, capture_output=True, text=True).stdout == f"{clean.home}\n"


def test_a_users_script_is_checked_strictly_against_it(wheel: Path, clean: Clean, tmp_path: Path) -> None:
    assert clean.install("--no-index", str(wheel))
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(textwrap.dedent(USER_SCRIPT))
    bad.write_text("import kubeai.elastic as kubeai\nkubeai.checkpoint_saved('one')\nkubeai.invented()\n")
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", clean.python, "--config-file", ""]
    done = subprocess.run([*check, good, bad], check=False, capture_output=True, text=True, cwd=tmp_path)
    wrong = [line.partition(": error: ")[0] for line in done.stdout.splitlines() if ": error: " in line]
    assert wrong == ["bad.py:2", "bad.py:3"], done.stdout
