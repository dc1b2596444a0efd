"""Reads from a job's annotations what it wants when it loses workers. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from servicekit.text import one_line
from supervisor.cluster.annotations import ON_LOSS, PREFIX, WORKER_MULTIPLE
from supervisor.domain.job import OnLoss, Spec
from supervisor.jobs.observation import annotation, count

_MAX_QUOTED = 64


def with_loss_policy(spec: Spec, annotations: Iterable[Mapping[str, str]]) -> Spec:
    """The spec with what the annotations ask for, each from the first object that has it.

    What is not understood, or does not suit the job's size, is left out, with a sentence that says so: a typing error
    must not stop a job.
    """
    objects = list(annotations)
    on_loss, multiple = annotation(objects, ON_LOSS), annotation(objects, WORKER_MULTIPLE)
    return replace(
        spec,
        on_loss=OnLoss(on_loss) if on_loss in set(OnLoss) else OnLoss.SHRINK,
        worker_multiple=count(multiple) if _divides(multiple, spec) else 1,
        ignored=tuple(_ignored(on_loss, multiple, spec)),
    )


def _divides(multiple: str | None, spec: Spec) -> bool:
    return count(multiple) > 0 and spec.requested_workers % count(multiple) == 0


def _ignored(on_loss: str | None, multiple: str | None, spec: Spec) -> Iterator[str]:
    if on_loss is not None and on_loss not in set(OnLoss):
        yield f"{_quoted(ON_LOSS, on_loss)} is neither {' nor '.join(OnLoss)}."
    if multiple is None or _divides(multiple, spec):
        return
    if not count(multiple):
        yield f"{_quoted(WORKER_MULTIPLE, multiple)} is not a whole number of at least 1."
    else:
        yield f"{_quoted(WORKER_MULTIPLE, multiple)} does not divide the {spec.requested_workers} requested workers."


def _quoted(name: str, value: str) -> str:
    return f"The annotation {name.removeprefix(PREFIX)} is ignored: '{one_line(value[:_MAX_QUOTED])}'"
