"""Reads the requests in a job's annotations, and explains why it ignores a wrong one. Pure.

A typing error must not stop a job, and it must not cost the job its protection in silence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial

from servicekit.bounds import DURATION_FORM, MAX_HOSTS, MAX_LISTED_WORKERS, duration, one_line, whole
from supervisor.cluster.annotations import (
    KNOWN,
    MANAGED,
    MAX_WAIT,
    MAX_WORKERS,
    MIN_WORKERS,
    ON_LOSS,
    ON_TIMEOUT,
    PREFIX,
    REQUESTED,
    SPOT,
    STOP,
    SUSPEND,
    WORKER_MULTIPLE,
)
from supervisor.domain.ids import is_name
from supervisor.domain.job import Capability, OnLoss, RequestKind, Spec, SupervisedJob, UserRequest

_SOMEBODY = "Somebody"
_MAX_QUOTED = 64
_MAX_SENTENCES = 16
"""The most that the CRD accepts."""


_count = partial(whole, most=MAX_LISTED_WORKERS)
_WORKERS = f"not a whole number from 1 to {MAX_LISTED_WORKERS:,}"
_LOSSES = frozenset(OnLoss)
_MOVE = "move"
_SWITCHES = frozenset({"true", "false"})
_VALUES: Mapping[str, tuple[Callable[[str], object], str]] = {
    MAX_WAIT: (lambda text: duration(text) is not None, f"not {DURATION_FORM}; the job may wait for ever"),
    MIN_WORKERS: (_count, f"{_WORKERS}; the job needs all its workers"),
    MAX_WORKERS: (_count, f"{_WORKERS}; the job never grows"),
    ON_LOSS: (_LOSSES.__contains__, f"neither {' nor '.join(OnLoss)}"),
    ON_TIMEOUT: (frozenset({"end", _MOVE}).__contains__, "neither end nor move"),
    WORKER_MULTIPLE: (_count, "not a whole number of at least 1"),
}
"""For each annotation with a value: the test of the value, and the end of the sentence about a wrong one."""


@dataclass(frozen=True, slots=True)
class Misreading:
    """An annotation that the supervisor ignores: its name, and the reason, as the second part of a sentence."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"The annotation {_short(self.name)} is ignored: {self.why}"


def asked_count(annotations: Iterable[Mapping[str, str]], name: str) -> int:
    """The number of workers in an annotation of the first object that has the annotation; 0 if none has it."""
    return _count(next((found[name] for found in annotations if name in found), None)) or 0


def with_annotations(
    spec: Spec,
    annotations: Iterable[Mapping[str, str]],
    own: frozenset[str] = frozenset(),
    *,
    from_hub: bool = False,
) -> Spec:
    """The spec with the values of the annotations.

    Each annotation counts in the first object that has it; the job comes first.

    What is not understood, or does not suit the job's size, is left out, with a sentence that says so. `own` are
    further annotations of the job's kind. `from_hub`: a hub has made the job.
    """
    objects = list(annotations)
    first = {name: text for each in reversed(objects) for name, text in each.items()}
    found = list(misreadings(objects, own))
    max_wait, capabilities = duration(first.get(MAX_WAIT)) or 0.0, spec.capabilities
    if first.get(ON_TIMEOUT) == _MOVE and not from_hub:
        found.append(Misreading(ON_TIMEOUT, "no hub of many clusters has made the job, so none can move it."))
    elif first.get(ON_TIMEOUT) == _MOVE:
        capabilities |= {Capability.MOVES}
        if not max_wait:
            found.append(Misreading(ON_TIMEOUT, f"the job has no {_short(MAX_WAIT)}, so it waits here for ever."))
    on_loss, multiple, requested = first.get(ON_LOSS), first.get(WORKER_MULTIPLE), spec.requested_workers
    factor = _count(multiple) or 1
    divides = requested % factor == 0
    if not divides:
        why = f"{_quoted(multiple)} does not divide the {requested} requested workers."
        found.append(Misreading(WORKER_MULTIPLE, why))
    if objects and (noted := objects[0].get(REQUESTED)) is not None:
        number = whole(noted, MAX_HOSTS)
        if number is None:
            found.append(Misreading(REQUESTED, f"{_quoted(noted)} is not a whole number up to {MAX_HOSTS:,}."))
        elif number > requested:
            why = f"the supervisor has not noted {number}, as the job has asked for {requested}."
            found.append(Misreading(REQUESTED, why))
    return replace(
        spec,
        max_wait_seconds=max_wait,
        capabilities=capabilities,
        on_loss=OnLoss(on_loss) if on_loss in _LOSSES else OnLoss.SHRINK,
        worker_multiple=factor if divides else 1,
        ignored=tuple(dict.fromkeys(str(each) for each in found[:_MAX_SENTENCES])),
    )


def requested_workers(annotations: Mapping[str, str], present: int) -> int:
    """The number of workers that a job of `present` workers asked for before the supervisor resumed it with fewer."""
    return max(whole(annotations.get(REQUESTED), MAX_HOSTS) or 0, present)


def with_request(job: SupervisedJob, annotations: Mapping[str, str], now: float) -> SupervisedJob:
    """The job with a person's request from an annotation of its object. A request to end the job takes precedence."""
    for kind, text in ((RequestKind.STOP, annotations.get(STOP)), (RequestKind.SUSPEND, annotations.get(SUSPEND))):
        if text is None or text == "false":
            continue
        # `WHO: REASON`, `WHO` or `true`; without a usable name it was somebody.
        who, colon, why = _signed(one_line(text))
        if text == "true" or not is_name(who):
            by, reason = _SOMEBODY, why
        else:
            by, reason = (who, why) if colon else (_SOMEBODY, who)
        known = job.observed.request
        at = known.at if known is not None and known.kind is kind else now
        return replace(job, observed=replace(job.observed, request=UserRequest(kind=kind, by=by, reason=reason, at=at)))
    return replace(job, observed=replace(job.observed, request=None))


def _signed(text: str) -> tuple[str, str, str]:
    """Splits `WHO: REASON`; the colon is empty if there is none. Names of users may have colons, as in `oidc:ann`."""
    if ": " in text or not text.endswith(":"):
        before, colon, after = text.partition(": " if ": " in text else ":")
    else:
        before, colon, after = text[:-1], ":", ""
    return before.strip(), colon.strip(), after.strip()


def mistyped_opt_in(annotations: Iterable[Mapping[str, str]]) -> str:
    """Why a job is not supervised whose annotation looks like a mistyped opt-in; empty for other jobs."""
    texts = [(name, found[name]) for found in annotations for name in (MANAGED, SPOT) if name in found]
    wrong = next(((name, text) for name, text in texts if text not in ("true", "false")), None)
    if wrong is None or any(text == "false" for _, text in texts):
        return ""
    name, text = wrong
    return f"The job is not supervised: its annotation {_short(name)} is {_quoted(text)}, and only 'true' opts in."


def misreadings(annotations: Iterable[Mapping[str, str]], own: frozenset[str] = frozenset()) -> Iterator[Misreading]:
    """The annotations that the supervisor ignores in a job of any kind.

    Of several objects, the value in the first one counts.
    """
    objects = list(annotations)
    # Each object opts in for itself: the webhook sees pods only.
    for found in objects:
        for name in (MANAGED, SPOT):
            if found.get(name, "true") not in _SWITCHES:
                yield Misreading(name, f"{_quoted(found[name])} is neither true nor false, so it does not opt in.")
    first = {name: text for each in reversed(objects) for name, text in each.items()}
    for name, text in first.items():
        if name in _VALUES:
            is_right, says = _VALUES[name]
            if not is_right(text):
                yield Misreading(name, f"{_quoted(text)} is {says}.")
        elif name not in KNOWN and name not in own:
            close = get_close_matches(_short(name), [_short(each) for each in KNOWN], n=1, cutoff=0.8)
            meant = f"; perhaps {close[0]} is meant" if close else ""
            yield Misreading(name, f"there is none of this name{meant}.")


def _short(name: str) -> str:
    return one_line(name.removeprefix(PREFIX)[:_MAX_QUOTED])


def _quoted(value: str | None) -> str:
    return f"'{one_line((value or '')[:_MAX_QUOTED])}'"
