"""Defects of `supervisor.decide`: wrong decisions from correct facts."""

from mutants.mutant import Edit, Mutant
from simulator.verdict import Failure

_AGREEMENT_OF_RANKS = "supervisor/decide/ranks.py"
_SIZE = "supervisor/decide/grant.py"
_LIVE = "supervisor/decide/live.py"
_STOPPING = "supervisor/decide/stopping.py"
_NOTICES = "supervisor/decide/notices.py"
_ORDERS = "supervisor/decide/directives.py"
_DIRECTIVES = "supervisor/decide/directives.py"
_WAITING = "supervisor/decide/waiting.py"
_REGISTRATION = "supervisor/decide/registration.py"

_STOPS = 'if {}:\n        return f"{{announced(s.noticed, notices)}}; {{count(left)}} would remain'
_BELOW_MINIMUM = _STOPS.format("not usable_workers(left, spec)")
_EXCLUSIONS_ORDERED = "exclusions=tuple(sorted(decision.exclusions)),"

MUTANTS = (
    Mutant(
        name="stops-falsely",
        breaks="Stops the job for every notice, however many workers remain.",
        violates=(Failure.FALSE_STOP,),
        edits=(Edit(_LIVE, _BELOW_MINIMUM, _STOPS.format("True")),),
        in_ci=True,
    ),
    Mutant(
        name="stops-with-one-worker-too-many",
        breaks="Stops the job if exactly its minimum remains.",
        violates=(Failure.FALSE_STOP,),
        edits=(Edit(_LIVE, _BELOW_MINIMUM, _STOPS.format("not usable_workers(left - 1, spec)")),),
    ),
    Mutant(
        name="stops-with-one-worker-too-few",
        breaks="Continues with one worker less than the minimum.",
        violates=(Failure.NOT_STOPPED,),
        edits=(Edit(_LIVE, _BELOW_MINIMUM, _STOPS.format("not usable_workers(left + 1, spec)")),),
    ),
    Mutant(
        name="never-stops",
        breaks="Never stops a job that falls below its minimum because of notices.",
        violates=(Failure.NOT_STOPPED,),
        edits=(Edit(_LIVE, _BELOW_MINIMUM, _STOPS.format("False")),),
        in_ci=True,
    ),
    Mutant(
        name="never-excludes",
        breaks="Decides to shrink and excludes no host.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(Edit(_LIVE, "        exclusions=before.hosts - kept,\n", "        exclusions=before.exclusions,\n"),),
    ),
    Mutant(
        name="keeps-withdrawn-hosts-excluded",
        breaks="Never ends the exclusion of a host whose notice was withdrawn.",
        violates=(Failure.NOT_TAKEN_BACK,),
        edits=(
            Edit(
                _LIVE,
                "exclusions = (before.exclusions & s.unusable) | surplus",
                "exclusions = (before.exclusions & s.present) | surplus",
            ),
        ),
        in_ci=True,
    ),
    Mutant(
        name="ignores-withdrawals",
        breaks="Acknowledges a withdrawal and keeps the notice.",
        violates=(Failure.NOT_TAKEN_BACK,),
        edits=(
            Edit(
                _NOTICES,
                "return replace(known, state=NoticeState.WITHDRAWN, ended_at=now) if known.holds else known",
                "return known",
            ),
        ),
    ),
    Mutant(
        name="takes-notices-back",
        breaks="Expires a notice three seconds after its receipt, while its agent still announces it.",
        violates=(Failure.NOTICED_HOST_USED,),
        edits=(
            Edit(
                _NOTICES,
                "return deadline_of(notice, policy) + policy.expire_seconds",
                "return notice.first_seen + 3.0",
            ),
        ),
    ),
    Mutant(
        name="never-releases-a-healthy-host",
        breaks="Excludes a healthy host together with the first group, for the rest of the run.",
        violates=(Failure.FALSE_EXCLUSION,),
        edits=(
            Edit(
                _ORDERS,
                _EXCLUSIONS_ORDERED,
                "exclusions=tuple(sorted(decision.exclusions.union(\n"
                "            sorted(decision.hosts - decision.exclusions)[: bool(decision.excluded_at)]))),",
            ),
        ),
    ),
    Mutant(
        name="excludes-the-wrong-hosts",
        breaks="Excludes the right number of hosts, but the wrong ones.",
        violates=(Failure.FALSE_EXCLUSION,),
        edits=(
            Edit(
                _ORDERS,
                _EXCLUSIONS_ORDERED,
                "exclusions=tuple(sorted(decision.hosts - decision.exclusions)[: len(decision.exclusions)]),",
            ),
        ),
    ),
    Mutant(
        name="orders-without-exclusions",
        breaks="Decides correctly and omits the exclusions from the launcher's order.",
        violates=(Failure.NOT_EXCLUDED,),
        edits=(Edit(_ORDERS, _EXCLUSIONS_ORDERED, "exclusions=(),"),),
    ),
    Mutant(
        name="suspends-before-the-checkpoint",
        breaks="Suspends a job as soon as it must stop, without waiting for rank 0.",
        violates=(Failure.STEP_LOST,),
        edits=(
            Edit(
                _STOPPING,
                "    elif _is_acknowledged(s, stop):\n",
                "    elif s.stored.stop is not None:\n",
            ),
        ),
    ),
    Mutant(
        name="loses-acknowledgements",
        breaks="Forgets that rank 0 has saved its checkpoint and waits for it until the deadline.",
        violates=(Failure.NOT_SUSPENDED,),
        edits=(
            Edit(
                _REGISTRATION,
                "replace(known, observed=replace(known.observed, acknowledgement=after))",
                "known",
            ),
        ),
    ),
    Mutant(
        name="stops-another-rank",
        breaks="Sends a STOP to rank 1 instead of rank 0.",
        violates=(Failure.NOT_SAVED,),
        edits=(Edit(_DIRECTIVES, "is None and worker.rank == 0", "is None and worker.rank == 1"),),
    ),
    Mutant(
        name="stops-nobody",
        breaks="Decides to stop and sends no STOP to any process.",
        violates=(Failure.NOT_STOPPED,),
        edits=(
            Edit(
                _DIRECTIVES,
                "if decision.stop is not None and worker.run <= decision.stop.run:",
                "if decision.stop is not None and worker.run < decision.stop.run:",
            ),
        ),
    ),
    Mutant(
        name="stops-a-job-that-shrinks",
        breaks="Stops all processes when hosts are excluded that the job does not need.",
        violates=(Failure.FALSE_STOP,),
        edits=(
            Edit(
                _DIRECTIVES,
                "    if asked_at is not None:\n        return ProcessDirectiveKind.CHECKPOINT, asked_at,",
                "    if decision.exclusions:\n        return ProcessDirectiveKind.STOP, decision.excluded_at,",
            ),
        ),
    ),
    Mutant(
        name="leaves-at-once",
        breaks="Sends LEAVE to a process as soon as its host is noticed, before the launcher has excluded the host.",
        violates=(Failure.RING_BROKEN,),
        edits=(
            Edit(
                _DIRECTIVES,
                "        last = max(deadline_of(own, policy) - policy.leave_margin_seconds,",
                "        last = min(own.first_seen,",
            ),
        ),
    ),
    Mutant(
        name="never-resumes",
        breaks="Never resumes a suspended job.",
        violates=(Failure.NOT_RESUMED,),
        edits=(
            Edit(
                _WAITING,
                "    if not facts.granted or spec.launcher_host in facts.notices or is_offered:",
                "    if not facts.granted or before.phase is Phase.SUSPENDED or is_offered:",
            ),
        ),
    ),
    Mutant(
        name="resumes-late",
        breaks="Resumes a suspended job twenty seconds after its capacity has arrived.",
        violates=(Failure.NOT_RESUMED,),
        edits=(
            Edit(
                _WAITING,
                "        at = max(since + delay,",
                "        at = max(since + delay + 20.0 * (before.phase is Phase.SUSPENDED),",
            ),
        ),
    ),
    Mutant(
        name="ignores-the-multiple",
        breaks="Lets a job train with any number of hosts, though it takes multiples only.",
        edits=(
            Edit(
                _SIZE,
                "    size = count - count % spec.worker_multiple\n",
                "    size = count if spec.worker_multiple else 0\n",
            ),
        ),
        violates=(Failure.NOT_A_MULTIPLE,),
        shown_by=("agreed",),
    ),
    Mutant(
        name="agrees-on-two-steps",
        breaks="Tells every second rank to stop one step later than the others.",
        edits=(
            Edit(
                _DIRECTIVES,
                "agreement.run != worker.run else agreement\n",
                "agreement.run != worker.run else replace(\n"
                "        agreement, step=agreement.step and agreement.step + (worker.rank or 0) % 2\n"
                "    )\n",
            ),
            Edit(_DIRECTIVES, "from dataclasses import dataclass\n", "from dataclasses import dataclass, replace\n"),
        ),
        violates=(Failure.NOT_AGREED,),
        shown_by=("agreed",),
    ),
    Mutant(
        name="stops-rank-0-alone",
        breaks="Stops rank 0 without an agreement in a job whose ranks save together.",
        edits=(
            Edit(
                _AGREEMENT_OF_RANKS,
                "        return bool(self.states) and all(purpose in each.purposes for each in self.states)\n",
                "        return purpose is None\n",
            ),
        ),
        violates=(Failure.NOT_AGREED,),
        shown_by=("agreed",),
    ),
)
