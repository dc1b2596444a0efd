"""A virtual environment of a user, in which wheels are installed."""

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
_UV = str(Path(sys.executable).with_name("uv"))


@dataclass(frozen=True, slots=True)
class PackagingEnvironment:
    home: Path

    @classmethod
    def create(cls, home: Path) -> Self:
        subprocess.run([_UV, "venv", "--quiet", "--python", sys.executable, str(home)], check=True)
        return cls(home)

    @property
    def packages(self) -> Path:
        return next(self.home.glob("lib/python*/site-packages"))

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [_UV, "pip", *arguments[:1], "--python", str(self.home / "bin" / "python"), *arguments[1:]]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def install(self, *wheels: Path) -> None:
        done = self.pip("install", "--no-index", "--no-deps", *map(str, wheels))
        assert done.returncode == 0, done.stderr

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment; the packages that ours depend on are those of the tests' environment."""
        variables = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
        program = [str(self.home / "bin" / command), *arguments]
        return subprocess.run(program, check=False, capture_output=True, text=True, env=variables, cwd=self.home)

    def owned(self, distribution: str) -> set[str]:
        """The files that an installed distribution owns, by its RECORD."""
        record = next(self.packages.glob(f"{distribution}-*.dist-info/RECORD")).read_text("utf-8")
        return {line.split(",")[0] for line in record.splitlines()}
