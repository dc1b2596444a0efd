"""The computing parts of the cluster benchmark: decisions from job status, requests from an audit log."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.audit import kinds, requests, sent_by, within
from benchmarks.job_history import RecordedJob, UndecidedError, decisions, exclusion_changes, first_delay


def sight(at: float, generation: int, *excluded: str, phase: str = "Running", job: str = "a") -> RecordedJob:
    return RecordedJob(at=at, job=job, generation=generation, phase=phase, run=1, excluded=frozenset(excluded))


SEEN = [
    sight(1.0, 1),
    sight(2.0, 1),
    sight(3.0, 2, "n1", phase="Shrinking"),
    sight(3.5, 2, "n1", phase="Shrinking"),
    sight(3.6, 9, "n9", job="b"),
    sight(4.0, 3, "n1"),
    sight(9.0, 4, "n1", "n2", phase="Shrinking"),
]


def test_a_decision_counts_once_however_often_it_is_seen() -> None:
    assert decisions(SEEN, "a", since=2.5, until=5.0) == 2
    assert decisions(SEEN, "a", since=2.5, until=10.0) == 3
    assert decisions(SEEN, "a", since=5.0, until=8.0) == 0


def test_exclusions_change_when_the_set_is_another_one() -> None:
    assert exclusion_changes(SEEN, "a", since=2.5, until=5.0) == 1
    assert exclusion_changes(SEEN, "a", since=2.5, until=10.0) == 2
    assert exclusion_changes(SEEN, "b", since=2.5, until=10.0) == 0


def test_a_delay_ends_with_the_first_sight() -> None:
    assert first_delay(SEEN, "a", 2.5, lambda each: each.phase == "Shrinking") == 0.5
    assert first_delay(SEEN, "a", 3.2, lambda each: each.phase == "Shrinking") == pytest.approx(0.3)


def test_what_was_never_decided_fails_the_run() -> None:
    with pytest.raises(UndecidedError, match="about b"):
        first_delay(SEEN, "b", 0.0, lambda each: each.phase == "Stopping")


def test_a_request_is_counted_once_and_by_kind(tmp_path: Path) -> None:
    """A watch when it begins, everything else when it is answered; only within the span, and with its account."""

    def line(second: int, stage: str, verb: str, **what: str) -> bytes:
        at = f"2026-01-01T00:00:{second:02}.000000Z"
        entry = {
            "stage": stage,
            "verb": verb,
            "requestReceivedTimestamp": at,
            "stageTimestamp": at[:-4] + "250Z",
            "requestURI": "/openid/v1/jwks?x=1",
            "user": {"username": f"user-{second}"},
        }
        return msgspec.json.encode({**entry, **({"objectRef": what} if what else {})})

    log = tmp_path / "audit.log"
    log.write_bytes(
        b"\n".join(
            [
                line(1, "ResponseStarted", "watch", resource="pods"),
                line(1, "ResponseComplete", "watch", resource="pods"),
                line(2, "ResponseComplete", "patch", resource="supervisedjobs", subresource="status"),
                line(3, "ResponseComplete", "get"),
                line(9, "ResponseComplete", "get"),
            ]
        )
    )
    sent = requests(log)
    early = within(sent, sent[0].at, sent[0].at + 5)
    assert kinds(early) == {"watch pods": 1, "patch supervisedjobs/status": 1, "get /openid/v1/jwks": 1}
    assert [each.what for each in early if each.writes] == ["patch supervisedjobs/status"]
    assert {each.seconds for each in sent} == {0.00025}
    assert [each.what for each in sent_by("user-2", sent)] == ["patch supervisedjobs/status"]
