"""Prometheus, promtool and Alertmanager of Debian's packages, and the published schema of Grafana's dashboards.

All of it lies in a cache outside the checkout. Run as a module: has it all, and prints where it is.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.testkit.caches import alone, cache

_PACKAGES = ("prometheus", "prometheus-alertmanager")
_PINS = Path(__file__).parent / "pins"
_TYPES = "node_modules/@grafana/schema/dist/esm/raw"
_SECONDS = 180.0
# Debian's Alertmanager reads its templates where its package has them and nowhere else.
_AT_HOME = """#!/bin/sh
home=$(cd "$(dirname "$0")" && pwd)
exec unshare --map-root-user --mount sh -c 'mount --bind "$0" /usr/share && exec "$@"' \
	"$home/usr/share" "$home/usr/bin/prometheus-alertmanager" "$@"
"""


class MonitoringProgram(StrEnum):
    PROMETHEUS = "prometheus"
    PROMTOOL = "promtool"
    ALERTMANAGER = "prometheus-alertmanager"


class ProgramUnavailable(Exception):  # noqa: N818  # It names what is so.
    """This machine has it not and cannot get it; the message says why."""


@dataclass(frozen=True, slots=True)
class ProgramShape:
    file: str
    type: str

    @property
    def arguments(self) -> list[str]:
        return ["--path", f"{_TYPES}/{self.file}", "--type", self.type, "--no-type-check"]


DASHBOARD = ProgramShape("dashboard/x/dashboard_types.gen.d.ts", "Dashboard")
OPTIONS = {
    "stat": ProgramShape("composable/stat/panelcfg/x/StatPanelCfg_types.gen.d.ts", "Options"),
    "state-timeline": ProgramShape(
        "composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen.d.ts", "Options"
    ),
    "table": ProgramShape("composable/table/panelcfg/x/TablePanelCfg_types.gen.d.ts", "Options"),
    "timeseries": ProgramShape("composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.d.ts", "Options"),
}
"""What each kind of panel may be told."""

Schemas = Mapping[ProgramShape, Any]


def programs() -> Mapping[MonitoringProgram, Path]:
    """Return each program's path: installed here, or unpacked from a Debian package.

    Raises:
        ProgramUnavailable: There is no apt-get, nothing can be downloaded, or nobody may have mounts of their own.
    """
    found = {program: shutil.which(program) for program in MonitoringProgram}
    if all(found.values()):
        return {program: Path(str(path)) for program, path in found.items()}
    home = _kept("debian", _unpack)
    unpacked = {program: home / "usr" / "bin" / program for program in MonitoringProgram}
    return {**unpacked, MonitoringProgram.ALERTMANAGER: home / MonitoringProgram.ALERTMANAGER}


def schemas() -> Schemas:
    """The JSON schema of each shape, generated from Grafana's own types.

    Raises:
        ProgramUnavailable: There is no npm, or nothing can be downloaded.
    """
    pins = b"".join((_PINS / name).read_bytes() for name in ("package.json", "package-lock.json"))
    shapes = [DASHBOARD, *OPTIONS.values()]
    key = hashlib.sha256(pins + repr(shapes).encode()).hexdigest()[:12]
    home = _kept(f"grafana-{key}", lambda at: _generate(at, shapes))
    return {shape: json.loads((home / f"{number}.json").read_bytes()) for number, shape in enumerate(shapes)}


def _unpack(home: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise ProgramUnavailable(f"there is no {tool} to get Prometheus with")
    try:
        _run(["apt-get", "--quiet", "download", *_PACKAGES], home)
    except ProgramUnavailable:
        # Its lists are old, or were never there.
        _run(["apt-get", "--quiet", "update"], home)
        _run(["apt-get", "--quiet", "download", *_PACKAGES], home)
    for package in home.glob("*.deb"):
        _run(["dpkg-deb", "--extract", str(package), str(home)], home)
        package.unlink()
    at_home = home / MonitoringProgram.ALERTMANAGER
    at_home.write_text(_AT_HOME, encoding="utf-8")
    at_home.chmod(0o755)
    _run([str(at_home), "--version"], home)


def _generate(home: Path, shapes: Sequence[ProgramShape]) -> None:
    if not shutil.which("npm"):
        raise ProgramUnavailable("there is no npm to get Grafana's types with")
    with tempfile.TemporaryDirectory(prefix="grafana-types-") as place:
        at = Path(place)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_PINS / name, at)
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], at)
        for number, shape in enumerate(shapes):
            output = home / f"{number}.json"
            _run([str(at / "node_modules/.bin/ts-json-schema-generator"), *shape.arguments, "-o", str(output)], at)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, made by one process at a time, and whole or not there."""
    place = cache("monitoring")
    home = place / name
    with alone(place):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=place, prefix="making-") as making:
                made = Path(making) / "made"
                made.mkdir()
                make(made)
                made.rename(home)
    return home


def _run(command: Sequence[str], at: Path) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS, cwd=at)
    except subprocess.TimeoutExpired as error:
        raise ProgramUnavailable(f"{command[0]} takes longer than {_SECONDS:g} s") from error
    if done.returncode:
        raise ProgramUnavailable(f"{' '.join(command[:3])} fails: {' '.join(done.stderr.split())[-300:]}")


def main() -> int:
    try:
        for program, path in programs().items():
            print(f"{program}\t{path}")  # noqa: T201  # That is what it is run for.
        print(f"schemas\t{len(schemas())}")  # noqa: T201  # As above.
    except ProgramUnavailable as reason:
        print(reason, file=sys.stderr)  # noqa: T201  # As above.
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
