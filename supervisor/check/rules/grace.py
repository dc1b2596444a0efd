"""Whether there is time for a checkpoint."""

from collections.abc import Iterator

from supervisor.check.command import KUBEAI_RUN
from supervisor.check.finding import ASSUMED_CHECKPOINT_SECONDS, Facts, Problem, Severity, rule
from supervisor.check.job import CheckedJob, Kind
from supervisor.check.values import number

_KUBERNETES_GRACE_SECONDS = 30.0
_SAVE_GRACE_SECONDS = 60.0
_LONG_UNREAD_SECONDS = 30.0


@rule("grace-too-short", Severity.ERROR, "pods that are killed before a checkpoint is written")
def grace_too_short(job: CheckedJob, facts: Facts) -> Iterator[Problem]:
    needed, source = _checkpoint(facts)
    for role in job.roles if job.kind is not Kind.COMMAND else ():
        written = number(role.pod, "terminationGracePeriodSeconds")
        grace = _KUBERNETES_GRACE_SECONDS if written is None else written
        if grace < needed:
            default = " (the default)" if written is None else ""
            yield Problem(
                f"{role.path}.template.spec.terminationGracePeriodSeconds",
                f"The pods of {role.name} are killed {grace:g} s{default} after an eviction or preemption begins, but "
                f"a checkpoint takes {needed:g} s{source}.",
                f"Set it to the time of a checkpoint and of one step, for example {needed * 2:g}.",
            )


@rule("save-grace-too-short", Severity.ERROR, "kubeai-run that ends its command before a checkpoint is written")
def save_grace_too_short(job: CheckedJob, facts: Facts) -> Iterator[Problem]:
    needed, source = _checkpoint(facts)
    for _, launch in job.launches(KUBEAI_RUN):
        try:
            written = launch.option("--save-grace")
            default = "" if written else " (the default)"
            grace = float(written or _SAVE_GRACE_SECONDS)
        except ValueError:
            continue
        if grace < needed:
            yield Problem(
                "kubeai-run --save-grace",
                f"kubeai-run gives {grace:g} s{default} for a checkpoint after SIGTERM, but one takes {needed:g} s"
                f"{source}.",
                f"Use --save-grace {needed * 2:g}.",
            )


@rule("flag-not-read", Severity.WARNING, "a running script that does not ask whether to stop")
def flag_not_read(_job: CheckedJob, facts: Facts) -> Iterator[Problem]:
    if facts.unread_seconds is not None and facts.unread_seconds >= _LONG_UNREAD_SECONDS:
        yield Problem(
            "training script",
            f"A process has not asked for {facts.unread_seconds:.0f} s whether to stop, so it would not notice a "
            "reclaim in time.",
            "Call should_stop(step) or check_alive() after every step, also in evaluations.",
        )


def _checkpoint(facts: Facts) -> tuple[float, str]:
    """How long a checkpoint takes, and who says so."""
    if facts.checkpoint_seconds is None:
        return ASSUMED_CHECKPOINT_SECONDS, " unless you say otherwise with --checkpoint"
    return facts.checkpoint_seconds, " as measured" if facts.measured else ""
