"""The identity directory as kubeai-run keeps it."""

from itertools import combinations_with_replacement, product
from pathlib import Path

import pytest
from kubeai.elastic import identity
from kubeai.elastic.commands.reconcile import RecordedStop
from kubeai.elastic.commands.workspace import RunWorkspace

LISTS = [
    ((), ()),
    (("a", "b"), ()),
    (("a", "b"), ("b",)),
    (("a",), ()),
    (("a", "x"), ("x",)),
    (("b", "x"), ("b", "x")),
]


def workspace(directory: Path) -> RunWorkspace:
    return RunWorkspace(directory, "job", "http://127.0.0.1:1", None)


def names(directory: Path, file: str) -> set[str]:
    return set((directory / file).read_text(encoding="utf-8").split())


@pytest.mark.parametrize(("before", "after"), list(product(LISTS, LISTS)))
def test_no_reader_sees_a_host_as_usable_that_is_so_neither_before_nor_after(
    before: tuple[tuple[str, ...], tuple[str, ...]],
    after: tuple[tuple[str, ...], tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever it reads the exclusions, the hosts and the exclusions again, as kubeai-discover-hosts does."""
    place = workspace(tmp_path)
    place.list_hosts(*before)
    seen = [(names(tmp_path, "hosts"), names(tmp_path, "exclusions"))]

    def write(path: Path, text: str) -> None:
        write_atomically(path, text)
        seen.append((names(tmp_path, "hosts"), names(tmp_path, "exclusions")))

    write_atomically = identity.write_atomically
    monkeypatch.setattr(identity, "write_atomically", write)
    place.list_hosts(*after)
    assert seen[-1] == (set(after[0]), set(after[1]))
    may_be_used = (set(before[0]) - set(before[1])) | (set(after[0]) - set(after[1]))
    for first, second, third in combinations_with_replacement(range(len(seen)), 3):
        assert seen[second][0] - seen[first][1] - seen[third][1] <= may_be_used


def test_an_earlier_jobs_words_are_forgotten(tmp_path: Path) -> None:
    """Its run numbers are not ours, and its token speaks for another run."""
    (tmp_path / "stopped").write_text("1 5\n", encoding="utf-8")
    (tmp_path / "token").write_text("old\n", encoding="utf-8")
    assert workspace(tmp_path).read_stop_marker() is None
    assert not (tmp_path / "token").exists()


@pytest.mark.parametrize(
    ("text", "word"), [("1 7\n", RecordedStop(1, 7)), ("", None), ("1", None), ("a b\n", None), ("1 2 3", None)]
)
def test_a_word_of_a_stop_is_a_run_and_a_generation(text: str, word: RecordedStop | None, tmp_path: Path) -> None:
    place = workspace(tmp_path)
    (tmp_path / "stopped").write_text(text, encoding="utf-8")
    assert place.read_stop_marker() == word


def test_a_new_run_asks_every_host_anew(tmp_path: Path) -> None:
    place = workspace(tmp_path)
    notes = [tmp_path / name for name in ("hosts.last", "hosts.unreachable", "hosts.printed", "hosts.left")]
    for note in notes:
        note.write_text("a\n", encoding="utf-8")
    place.enter_run(2, "t")
    assert not any(note.exists() for note in notes)


def test_a_run_is_complete_for_its_processes_once_its_token_is_there(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("PEM", encoding="utf-8")
    place = RunWorkspace(tmp_path, "job", "https://127.0.0.1:1", tmp_path / "ca.pem")
    place.enter_run(1, "t1")
    place.enter_run(2, None)
    assert identity.read(tmp_path) is None
    place.give_token("t2")
    own = identity.read(tmp_path)
    assert own is not None
    assert (own.job, own.run, own.token, own.address) == ("job", 2, "t2", "https://127.0.0.1:1")
    assert own.ca is not None
    assert own.ca.read_text(encoding="utf-8") == "PEM"


def test_the_certificates_to_trust_follow_their_file(tmp_path: Path) -> None:
    """A job may outlive them; a file that is just being exchanged changes nothing."""
    source, copy = tmp_path / "ca.pem", tmp_path / "ca.crt"
    source.write_text("old", encoding="utf-8")
    place = RunWorkspace(tmp_path, "job", "https://127.0.0.1:1", source)
    place.enter_run(1, "t1")
    source.write_text("old and new", encoding="utf-8")
    place.renew_trust()
    source.unlink()
    place.renew_trust()
    assert copy.read_text(encoding="utf-8") == "old and new"


def test_an_earlier_jobs_certificates_are_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("old", encoding="utf-8")
    workspace(tmp_path).enter_run(1, "t1")
    own = identity.read(tmp_path)
    assert own is not None
    assert own.ca is None
