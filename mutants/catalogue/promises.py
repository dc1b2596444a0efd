"""Defects that demo and replay cannot show: their jobs save without fault and have a name each, and no plan raises."""

from mutants.mutant import Edit, FailingTest, Mutant

_LOOP = "supervisor/control/loop.py"
_RANKS = "supervisor/fanout/ranks.py"
_REGISTRATION = "supervisor/decide/registration.py"
_STREAMS = "supervisor/fanout/processes.py"
_PROCESSES = "supervisor/ingest/processes.py"
_MONITOR = "sdk/kubeai/elastic/monitor.py"

_NAMES = "tests/supervisor/fanout/test_fanout_names.py"
_BULKHEADS = "tests/supervisor/test_supervisor_bulkheads.py"
_SUPERVISED = "tests/sdk/test_sdk_supervised.py"
_FAILED_SAVE = f"{_SUPERVISED}::test_a_save_that_fails_is_told_everywhere_and_ends_a_wait_with_75"

MUTANTS = (
    Mutant(
        name="leaves-without-the-error",
        breaks="The SDK swallows a failed save: the process says only that it leaves.",
        edits=(
            Edit(
                _MONITOR,
                "            answers = self.state.directive.is_final and not self._is_another(step)\n"
                "            generation = self.state.directive.generation if answers else _NO_STOP\n",
                "            answers = not error\n            generation = _NO_STOP\n",
            ),
        ),
        shown_by=(FailingTest(_FAILED_SAVE, "left, without saying that"),),
    ),
    Mutant(
        name="counts-a-failure-as-a-save",
        breaks="The supervisor stores a save that failed as one that is complete.",
        edits=(
            Edit(
                _PROCESSES,
                "            kind=AcknowledgementKind.FAILED if error else AcknowledgementKind(sent.kind),\n",
                "            kind=AcknowledgementKind.SAVED if error else AcknowledgementKind(sent.kind),\n",
            ),
        ),
        in_ci=True,
        shown_by=(FailingTest(_FAILED_SAVE, "saved a checkpoint of step"),),
    ),
    Mutant(
        name="keeps-ranks-by-name",
        breaks="Keeps what ranks say by the name of their job: a lower run is an earlier one of the same job.",
        edits=(
            Edit(
                _RANKS,
                "        job = self._jobs.get(worker.job)\n        if job is None or job.run < worker.run:\n"
                "            costs = NO_COSTS if job is None else job.costs\n"
                "            job = self._jobs[worker.job] = _JobRanks(worker.run, costs=costs)\n",
                '        name = worker.job._replace(uid="", registered_at=0.0)\n'
                "        job = self._jobs.get(name)\n        if job is None or job.run < worker.run:\n"
                "            costs = NO_COSTS if job is None else job.costs\n"
                "            job = self._jobs[name] = _JobRanks(worker.run, costs=costs)\n",
            ),
            Edit(
                _RANKS,
                "        job = self._jobs.get(known)\n",
                '        job = self._jobs.get(known._replace(uid="", registered_at=0.0))\n',
            ),
        ),
        in_ci=True,
        shown_by=(
            FailingTest(
                f"{_NAMES}::test_the_ranks_of_the_new_job_agree_and_the_earlier_ones_are_not_asked",
                "agree_to = Ranks(states=(), left=frozenset(), known_costs=ChangeCosts(",
            ),
            FailingTest(
                "tests/supervisor/fanout/test_fanout_agreements.py::test_a_new_job_agrees_although_its_runs_begin_again",
                "rank 0 of the new job is stopped alone",
            ),
        ),
    ),
    Mutant(
        name="keeps-streams-by-name",
        breaks="Finds the processes and members of an earlier job of a name for the new one.",
        edits=(
            Edit(
                _STREAMS,
                "        return None if jobs is None else jobs.get(job)\n",
                "        return None if jobs is None else next(iter(jobs.values()))\n",
            ),
        ),
        shown_by=(
            FailingTest(
                f"{_NAMES}::test_a_late_stream_of_an_earlier_member_ends_at_once",
                "assert ('another job has this name now', None) == (None, 'another job has this name now')",
            ),
        ),
    ),
    Mutant(
        name="plans-without-a-bulkhead",
        breaks="A plan that raises ends the pass, so that the other jobs are not planned.",
        edits=(
            Edit(
                _LOOP,
                '        with self._bulkhead.guard("plan", job.name) as attempt:\n'
                "            return self._planned(job, grant, now)\n"
                "        self._schedule.planned(job.name, now + (attempt.retry_in or 0.0))\n"
                "        return None\n",
                "        return self._planned(job, grant, now)\n",
            ),
            # In the order of a set, the job with the fault comes last in every second process.
            Edit(
                _LOOP,
                "        for name in self._schedule.due(snapshot.jobs, granted, now):\n",
                "        for name in sorted(self._schedule.due(snapshot.jobs, granted, now)):\n",
            ),
        ),
        shown_by=(
            FailingTest(
                f"{_BULKHEADS}::test_a_fault_in_one_job_leaves_the_others_served[plan]",
                "a line with {'type': 'directive', 'directive': 'STOP'}",
            ),
        ),
    ),
    Mutant(
        name="believes-an-older-sdk",
        breaks="The supervisor takes the checkpoint of an older step, reported late, for the answer to a STOP.",
        edits=(
            Edit(
                _RANKS,
                "        return known.process == worker.process and step < known.step\n",
                "        return known.process != worker.process and step < known.step\n",
            ),
        ),
        shown_by=(
            FailingTest(
                f"{_SUPERVISED}::test_an_older_sdk_that_reports_an_older_checkpoint_late_is_not_believed", "step=40"
            ),
        ),
    ),
    Mutant(
        name="stops-with-an-older-checkpoint",
        breaks="SDK and supervisor take the checkpoint of an older step for that of the agreed one.",
        edits=(
            Edit(
                _MONITOR,
                "        return step != wanted if self._received.is_agreed else step < wanted\n",
                "        return wanted < 0\n",
            ),
            Edit(
                _REGISTRATION,
                "or at is None or answer.step is None or answer.step >= at\n",
                "or at is None or answer.step is None or answer.step >= 0\n",
            ),
        ),
        shown_by=(
            FailingTest(
                f"{_SUPERVISED}::test_an_older_checkpoint_that_completes_late_does_not_end_the_job",
                "<Phase.SUSPENDED: 'Suspended'> is <Phase.STOPPING: 'Stopping'>",
            ),
        ),
    ),
)
