"""A release as `make release` builds it, from a copy of this checkout."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from release.signing import NAMESPACE
from release.version import declared

ROOT = Path(__file__).parents[2]
[VERSION] = declared(ROOT)["pyproject.toml"]
_GIT = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_COMMITTER_DATE": "2026-01-31T12:00:00Z"}
_USER = ("-c", "user.name=A tester", "-c", "user.email=tester@example.com")


def _git(folder: Path, *arguments: str, umask: int = 0o022) -> str:
    command = ["git", *_USER, *arguments]
    done = subprocess.run(command, cwd=folder, env=_GIT, check=True, capture_output=True, text=True, umask=umask)
    return done.stdout


def _release(checkout: Path, *arguments: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "release", "--images", "none", *arguments]
    return subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True, umask=umask)


def _copied(home: Path) -> Path:
    """A committed copy of the checkout as it is now, with changes that are not committed."""
    for name in _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
        if name and (ROOT / name).is_file():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, home / name)
    _git(home, "init", "--quiet")
    _git(home, "add", "--all")
    _git(home, "commit", "--quiet", "--message", "All of it")
    return home


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _copied(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def first(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first")
    done = _release(checkout, VERSION, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out / VERSION


def test_it_has_every_part(first: Path) -> None:
    assert {path.name for path in first.iterdir()} == {
        f"elastic_job_supervisor-{VERSION}-py3-none-any.whl",
        f"elastic_job_supervisor-{VERSION}.tar.gz",
        f"kubeai_elastic-{VERSION}-py3-none-any.whl",
        f"kubeai_elastic-{VERSION}.tar.gz",
        f"elastic-job-supervisor-{VERSION}.tgz",
        f"job-supervisor-hub-{VERSION}.tgz",
        f"elastic-job-supervisor-{VERSION}.cdx.json",
        f"elastic-node-agent-{VERSION}.cdx.json",
        "RELEASE_NOTES.md",
        "SHA256SUMS",
        "provenance.intoto.json",
    }


def test_the_checksums_are_those_of_the_files(first: Path) -> None:
    lines = (first / "SHA256SUMS").read_text("utf-8").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    others = {path.name: path for path in first.iterdir() if path.name != "SHA256SUMS"}
    assert sums == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in others.items()}


def test_the_provenance_names_the_commit_and_each_file(first: Path, checkout: Path) -> None:
    said = json.loads((first / "provenance.intoto.json").read_text("utf-8"))
    lines = (first / "SHA256SUMS").read_text("utf-8").splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    del sums["provenance.intoto.json"]
    assert (said["_type"], said["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert {each["name"]: each["digest"]["sha256"] for each in said["subject"]} == sums
    definition = said["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"version": VERSION}
    [source, *locks] = definition["resolvedDependencies"]
    assert source["digest"]["gitCommit"] == _git(checkout, "rev-parse", "HEAD").strip()
    assert "requirements/server.txt" in {each["name"] for each in locks}
    for each in locks:
        assert each["digest"]["sha256"] == hashlib.sha256((checkout / each["name"]).read_bytes()).hexdigest()


# Short runs build the wheels twice, below, and compare the chart with the tracked files.
@pytest.mark.long
def test_two_builds_are_equal_byte_by_byte(
    first: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In another folder, with files of another time, and by a user with another umask."""
    moved = tmp_path_factory.mktemp("moved") / "checkout"
    _git(moved.parent, "clone", "--quiet", str(checkout), str(moved), umask=0o077)
    done = _release(moved, VERSION, umask=0o077)
    assert done.returncode == 0, done.stderr
    second = moved / "dist" / VERSION
    assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}
    assert [path.name for path in first.iterdir() if path.read_bytes() != (second / path.name).read_bytes()] == []


@pytest.mark.parametrize("name", ["elastic_job_supervisor", "kubeai_elastic"])
def test_the_sdist_builds_the_same_wheel(name: str, first: Path, checkout: Path, tmp_path: Path) -> None:
    with tarfile.open(first / f"{name}-{VERSION}.tar.gz") as sdist:
        sdist.extractall(tmp_path, filter="data")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git(checkout, "log", "-1", "--format=%ct").strip()}
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=tmp_path / f"{name}-{VERSION}", env=environment, check=True, capture_output=True)
    wheel = f"{name}-{VERSION}-py3-none-any.whl"
    assert (tmp_path / wheel).read_bytes() == (first / wheel).read_bytes()


@pytest.mark.parametrize("name", ["elastic-job-supervisor", "job-supervisor-hub"])
def test_a_chart_has_the_tracked_files_at_the_time_of_the_commit(name: str, first: Path, checkout: Path) -> None:
    folder = checkout / "charts" / name
    tracked = _git(folder, "ls-files", "-z").split("\0")[:-1]
    with tarfile.open(first / f"{name}-{VERSION}.tgz") as archive:
        found = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
        assert {entry.mtime for entry in archive} == {int(_git(checkout, "log", "-1", "--format=%ct"))}
    assert found == {f"{name}/{path}": (folder / path).read_bytes() for path in tracked}


def test_a_checkout_with_changes_is_refused(checkout: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(checkout, tmp_path / "checkout")
    (changed / "new.txt").write_text("")
    refused = _release(changed, VERSION, "--out", str(tmp_path / "out"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "no release: the checkout has changes that are not committed: ?? new.txt\n"
    assert not (tmp_path / "out").exists()


def test_another_version_is_refused(checkout: Path, tmp_path: Path) -> None:
    refused = _release(checkout, "99.0.0", "--out", str(tmp_path / "out"))
    assert refused.returncode == 1
    assert refused.stderr == f"no release: pyproject.toml declares {VERSION} and not 99.0.0\n"
    assert not (tmp_path / "out").exists()


def test_a_version_without_a_section_in_the_changelog_is_refused(checkout: Path, tmp_path: Path) -> None:
    silent = shutil.copytree(checkout, tmp_path / "checkout")
    (silent / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    _git(silent, "commit", "--quiet", "--all", "--message", "Forget it")
    refused = _release(silent, VERSION, "--out", str(tmp_path / "out"))
    assert refused.stderr == f"no release: CHANGELOG.md has no section [{VERSION}]\n"
    assert not (tmp_path / "out").exists()


def test_a_signature_of_the_checksums_verifies(checkout: Path, tmp_path: Path) -> None:
    """With a key of the test's own; not for other checksums, nor for another purpose."""
    key = tmp_path / "key"
    _keygen("-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key))
    done = _release(checkout, VERSION, "--out", str(tmp_path), "--sign", str(key))
    assert done.returncode == 0, done.stderr
    sums = (tmp_path / VERSION / "SHA256SUMS").read_text("utf-8")
    allowed = tmp_path / "allowed"
    allowed.write_text(f"release {key.with_suffix('.pub').read_text('utf-8')}", "utf-8")
    given = ("-Y", "verify", "-f", str(allowed), "-I", "release", "-s", str(tmp_path / VERSION / "SHA256SUMS.sig"))
    assert _keygen(*given, "-n", NAMESPACE, given=sums).returncode == 0
    assert _keygen(*given, "-n", NAMESPACE, given=sums.replace("0", "1")).returncode != 0
    assert _keygen(*given, "-n", "file", given=sums).returncode != 0


def test_a_key_that_cannot_sign_is_named(checkout: Path, tmp_path: Path) -> None:
    refused = _release(checkout, VERSION, "--out", str(tmp_path), "--sign", str(tmp_path / "none"))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"no release: cannot sign with {tmp_path / 'none'}: ")


def _keygen(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [shutil.which("ssh-keygen") or pytest.skip("there is no ssh-keygen"), *arguments]
    return subprocess.run(command, input=given, check=False, capture_output=True, text=True)
