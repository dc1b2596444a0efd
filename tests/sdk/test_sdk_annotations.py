"""The second path: a directive in an annotation of the pod, for a process that hears nobody."""

import json
from pathlib import Path

import pytest
from kubeai.elastic.identity import parse_annotations
from kubeai.elastic.messages import Directive, DirectiveKind, DirectiveLine
from kubeai.elastic.monitor import NO_DIRECTIVE, ReceivedState, apply, apply_annotation
from kubeai.elastic.testing import FakeSupervisor

from tests.sdk.sdk_scripts import TRAINING, Start
from tests.testkit.waiting import wait_until

KEY = "job-supervisor.kube-ai.io/directive"
SAYING = TRAINING.replace(
    'print("saved")', "d = kubeai.directive(); print(d.kind.value, d.run, d.generation, d.reason)"
)


def annotate(directory: Path, value: str) -> None:
    """Show it as the kubelet does: all annotations in a file that is exchanged."""
    lines = (f"{key}={json.dumps(text)}\n" for key, text in {"a/other": 'x="y"', KEY: value}.items())
    draft = directory / "annotations.tmp"
    draft.write_text("".join(lines))
    draft.replace(directory / "annotations")


def directive(kind: DirectiveKind, run: int, generation: int) -> Directive:
    return Directive(kind, job="", run=run, generation=generation, reason="why")


def test_the_directive_is_found_among_all_annotations() -> None:
    """As the kubelet quotes them; the reason may hold anything, or be missing."""
    found = parse_annotations(f'a/b="c"\n{KEY}="5 17 STOP it \\"really\\" goes"\nz="7 7 LEAVE"\n')
    assert found == Directive(DirectiveKind.STOP, job="", run=5, generation=17, reason='it "really" goes')
    found = parse_annotations(f'{KEY}="5 17 LEAVE"')
    assert found is not None
    assert (found.kind, found.reason) == (DirectiveKind.LEAVE, "the pod's annotation asks for it")


@pytest.mark.parametrize(
    "value",
    [
        "",
        '"',
        '""',
        "5 17 STOP",
        '"5 17"',
        '"5 17 RUN"',
        '"5 17 CHECKPOINT"',
        '"5 17 stop"',
        '"5 x STOP"',
        '"-1 17 STOP"',
        '"5 1.5 STOP"',
        '"5  17 STOP"',
        f'"5 {"9" * 5000} STOP"',
    ],
)
def test_anything_else_means_nothing(value: str) -> None:
    assert parse_annotations(f"{KEY}={value}\n") is None
    assert parse_annotations("other=1\n") is None


def heard(kind: DirectiveKind, generation: int, act_in: float = 0.0) -> ReceivedState:
    """What a process of run 5 has heard from its supervisor."""
    said = Directive(kind, job="job", run=5, generation=generation, reason="said")
    return apply(ReceivedState(), DirectiveLine(said, act_in, None, None, release=False), now=0.0)


@pytest.mark.parametrize(
    ("state", "run", "generation", "is_news", "obeyed"),
    [
        (ReceivedState(), 5, 17, True, True),
        (ReceivedState(), 5, 17, False, False),
        (heard(DirectiveKind.RUN, 16), 5, 17, True, True),
        (heard(DirectiveKind.RUN, 16), 5, 17, False, True),
        (heard(DirectiveKind.RUN, 17), 5, 17, True, True),
        (heard(DirectiveKind.RUN, 18), 5, 17, True, False),
        (heard(DirectiveKind.RUN, 1), 4, 17, True, False),
        (heard(DirectiveKind.RUN, 1), 6, 17, True, False),
        (heard(DirectiveKind.LEAVE, 17, act_in=60.0), 5, 17, True, True),
        (heard(DirectiveKind.LEAVE, 18, act_in=60.0), 5, 17, True, False),
        (heard(DirectiveKind.LEAVE, 16), 5, 17, True, False),
    ],
)
def test_it_counts_for_this_run_and_unless_a_supervisor_has_said_more(
    state: ReceivedState, run: int, generation: int, *, is_news: bool, obeyed: bool
) -> None:
    """Whatever was there before this process counts only once its run is known."""
    said = directive(DirectiveKind.STOP, run, generation)
    after = apply_annotation(state, said, is_news=is_news)
    assert (after is not state) == obeyed
    if obeyed:
        assert (after.directive.kind, after.directive.generation, after.pending) == (DirectiveKind.STOP, 17, None)
        assert after.directive.job == ("" if state.directive == NO_DIRECTIVE and state.pending is None else "job")


def test_a_process_that_hears_nobody_leaves(supervisor: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    """The network is cut from the start, and the pod is annotated while it trains."""
    supervisor.stop()
    annotate(tmp_path, "1 3 STOP of an earlier run")
    script = start(SAYING, KUBEAI_EXIT_HOLD="0")
    wait_until(script.err.read_text)
    annotate(tmp_path, "2 4 LEAVE the node goes")
    assert script.end() == 255
    assert script.out.read_text() == "training\nLEAVE 2 4 the node goes\n"
    supervisor.start()


def test_what_was_there_before_counts_once_the_supervisor_names_that_run(
    supervisor: FakeSupervisor, start: Start, tmp_path: Path
) -> None:
    supervisor.write_identity(tmp_path, run=2)
    supervisor.direct(directive="RUN", generation=3)
    annotate(tmp_path, "2 4 STOP again")
    script = start(SAYING, KUBEAI_EXIT_HOLD="0")
    assert script.end() == 255
    assert script.out.read_text() == "training\nSTOP 2 4 again\n"
    assert supervisor.wait_for(lambda: supervisor.reports_of("left"))[0]["generation"] == 4


def test_no_such_file_costs_nothing(supervisor: FakeSupervisor, start: Start, tmp_path: Path) -> None:
    script = start(TRAINING)
    supervisor.wait_for(lambda: supervisor.hellos)
    annotate(tmp_path, "1 9 STOP")
    supervisor.direct(directive="LEAVE", act_in=1.5, reason="the stream says so")
    assert script.end() == 255
    assert [each["generation"] for each in supervisor.reports_of("left")] == [1]
