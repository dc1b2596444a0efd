"""Says what is proved of each framework, and by which test.

The guide has the tables. `python -m tests.frameworks.frameworks_support` prints them.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
COSTS = _ROOT / "benchmarks" / "results" / "frameworks.json"
"""By example, the seconds that a stop and a start of it took, and the simulated goodput; of `make frameworks-costs`."""

_EXACT = "stop and resume, losses equal bit by bit"
_EVALUATION = "stop in an evaluation"
_APART = "a rank that cannot agree"
_KILLED = "supervisor killed meanwhile"
_RANKS = "another number of ranks in the next run"
_CONTROL = "control: without agreement"
_COLUMNS = (_EXACT, _EVALUATION, _APART, _KILLED, _RANKS, _CONTROL)
_OLDEST = "frameworks-oldest.txt"
_BIT_BY_BIT = "bit by bit"
_OTHER_RANKS = "test_other_numbers_of_ranks.py::test_the_next_run_has_another_number_of_ranks"


@dataclass(frozen=True, slots=True)
class Proof:
    """Names a test and says what it shows.

    Attributes:
        says: In a few words.
        test: Its file in this directory, and its name.
    """

    says: str
    test: str

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSupport:
    """One framework.

    Attributes:
        title: Its name.
        section: The anchor of its section in the guide.
        packages: Those whose versions count, in the lock file.
        lock: The file of its pinned packages, in `requirements`.
        oldest: That of the oldest versions that are tested as well. None: they are not.
        example: The name of its example, and what it is called with besides the directory and the steps.
        proofs: By column. A column that is left out was not tried.
        has_evaluations: Whether the framework has evaluations of its own.
    """

    title: str
    section: str
    packages: tuple[str, ...]
    example: str
    proofs: Mapping[str, Proof]
    lock: str = "frameworks.txt"
    oldest: str | None = None
    has_evaluations: bool = False

    def versions(self) -> tuple[str, str]:
        """The newest and the oldest that are tested."""
        oldest = "not tried" if self.oldest is None else self._versions(self.oldest)
        return self._versions(self.lock), oldest

    def _versions(self, lock: str) -> str:
        return ", ".join(f"{name} {version(name, lock)}" for name in self.packages)


_OF_A_TRAINER = {
    _EVALUATION: Proof(_BIT_BY_BIT, "test_frameworks_huggingface.py::test_an_evaluation_delays_no_stop"),
    _APART: Proof(
        "nothing hangs, resumes from the last checkpoint",
        "test_frameworks_huggingface.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
    ),
    _KILLED: Proof(
        _BIT_BY_BIT, "test_frameworks_huggingface.py::test_a_supervisor_that_is_killed_while_ranks_agree_loses_no_step"
    ),
    _CONTROL: Proof("steps lost", "test_frameworks_huggingface.py::test_without_an_agreement_steps_are_lost"),
}
"""Tests that run without DeepSpeed and with it."""

ALL = (
    FrameworkSupport(
        title="Hugging Face Trainer",
        section="hugging-face-trainer",
        packages=("transformers", "torch"),
        example="huggingface.py",
        oldest=_OLDEST,
        has_evaluations=True,
        proofs={
            _EXACT: Proof("yes", "test_frameworks_huggingface.py::test_a_stop_loses_no_step_and_changes_no_bit"),
            _RANKS: Proof("step, model, optimizer; not the part of the epoch", _OTHER_RANKS),
            **_OF_A_TRAINER,
        },
    ),
    FrameworkSupport(
        title="Trainer with DeepSpeed (ZeRO 2)",
        section="hugging-face-trainer",
        packages=("transformers", "deepspeed"),
        example="huggingface.py deepspeed",
        oldest=_OLDEST,
        has_evaluations=True,
        proofs={
            _EXACT: Proof(
                "yes", "test_frameworks_huggingface.py::test_with_deepspeed_a_stop_loses_no_step_and_changes_no_bit"
            ),
            _RANKS: Proof("as above, the checkpoint is converted", _OTHER_RANKS),
            **_OF_A_TRAINER,
        },
    ),
    FrameworkSupport(
        title="TRL's SFTTrainer, two ranks",
        section="trl",
        packages=("trl",),
        lock="trl.txt",
        oldest="trl-oldest.txt",
        example="trl_sft.py",
        has_evaluations=True,
        proofs={
            _EXACT: Proof("yes", "test_trl.py::test_a_stop_loses_no_step_and_changes_no_bit"),
            _EVALUATION: Proof(_BIT_BY_BIT, "test_trl.py::test_a_stop_in_an_evaluation_changes_no_bit"),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_trl.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_trl.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof("at the same step", "test_trl.py::test_the_next_run_has_another_number_of_ranks"),
            _CONTROL: Proof("steps lost", "test_trl.py::test_without_an_agreement_steps_are_lost"),
        },
    ),
    FrameworkSupport(
        title="Accelerate",
        section="accelerate",
        packages=("accelerate", "torch"),
        example="accelerate_loop.py",
        oldest=_OLDEST,
        proofs={
            _EXACT: Proof("yes", "test_frameworks_accelerate.py::test_a_stop_loses_no_step_and_changes_no_bit"),
            _APART: Proof(
                "nothing hangs, the next run starts anew",
                "test_frameworks_accelerate.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(
                _BIT_BY_BIT,
                "test_frameworks_accelerate.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step",
            ),
            _RANKS: Proof("yes, at the same part of the epoch", _OTHER_RANKS),
            _CONTROL: Proof(
                "nothing saved", "test_frameworks_accelerate.py::test_without_an_agreement_nothing_is_saved"
            ),
        },
    ),
    FrameworkSupport(
        title="PyTorch Lightning",
        section="pytorch-lightning",
        packages=("lightning", "torch"),
        example="lightning_ddp.py",
        oldest=_OLDEST,
        has_evaluations=True,
        proofs={
            _EXACT: Proof("yes", "test_lightning.py::test_a_stop_in_mid_epoch_changes_no_loss"),
            _EVALUATION: Proof(_BIT_BY_BIT, "test_lightning.py::test_a_stop_in_a_validation_changes_no_loss"),
            _APART: Proof(
                "nothing hangs, the next run starts anew",
                "test_lightning.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(
                _BIT_BY_BIT, "test_lightning.py::test_a_supervisor_that_is_killed_in_mid_agreement_loses_no_step"
            ),
            _RANKS: Proof("yes, at the same part of the epoch", _OTHER_RANKS),
            _CONTROL: Proof("nothing saved", "test_lightning.py::test_without_an_agreement_nothing_is_saved"),
        },
    ),
    FrameworkSupport(
        title="DDP",
        section="ddp",
        packages=("torch",),
        example="ddp.py",
        oldest=_OLDEST,
        proofs={
            _EXACT: Proof("yes", "test_ddp.py::test_all_ranks_stop_at_one_step_and_resume_exactly"),
            _APART: Proof(
                "rank 0 saves alone, no step lost",
                "test_ddp.py::test_with_a_rank_that_cannot_agree_rank_zero_saves_alone",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_ddp.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof("yes; batches are the script's", _OTHER_RANKS),
            _CONTROL: Proof(
                "nothing saved", "test_ddp.py::test_without_an_agreement_ranks_told_one_by_one_save_nothing"
            ),
        },
    ),
    FrameworkSupport(
        title="FSDP2",
        section="fsdp2",
        packages=("torch",),
        example="fsdp.py",
        oldest="fsdp2-oldest.txt",
        proofs={
            _EXACT: Proof("yes", "test_fsdp.py::test_all_ranks_stop_at_one_step_and_resume_exactly"),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_fsdp.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_fsdp.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof("yes; batches are the script's", _OTHER_RANKS),
            _CONTROL: Proof(
                "the save hangs or aborts",
                "test_fsdp.py::test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts",
            ),
        },
    ),
    FrameworkSupport(
        title="DeepSpeed (ZeRO 2)",
        section="deepspeed",
        packages=("deepspeed", "torch"),
        example="deepspeed_zero.py",
        oldest=_OLDEST,
        proofs={
            _EXACT: Proof("yes", "test_deepspeed.py::test_all_ranks_stop_between_two_updates_and_resume_exactly"),
            _APART: Proof(
                "nothing hangs, the next run starts anew",
                "test_deepspeed.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_deepspeed.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof("yes, the checkpoint is converted; batches are the script's", _OTHER_RANKS),
            _CONTROL: Proof(
                "the save hangs or aborts",
                "test_deepspeed.py::test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts",
            ),
        },
    ),
    FrameworkSupport(
        title="Megatron-core, tensor parallel",
        section="megatron-core",
        packages=("megatron-core",),
        lock="megatron.txt",
        example="megatron_gpt.py",
        proofs={
            _EXACT: Proof("yes", "test_megatron.py::test_all_ranks_stop_at_one_step_and_resume_exactly"),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_megatron.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_megatron.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof(
                "yes; batches are the script's",
                "test_megatron.py::test_another_number_of_ranks_goes_on",
            ),
            _CONTROL: Proof(
                "the save hangs or aborts",
                "test_megatron.py::test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts",
            ),
        },
    ),
    FrameworkSupport(
        title="TorchTitan",
        section="torchtitan",
        packages=("torchtitan",),
        lock="torchtitan.txt",
        example="torchtitan_llama.py",
        has_evaluations=True,
        proofs={
            _EXACT: Proof("yes", "test_torchtitan.py::test_all_ranks_stop_at_one_step_and_resume_exactly"),
            _EVALUATION: Proof(
                "after it, bit by bit", "test_torchtitan.py::test_a_stop_that_comes_in_a_validation_changes_no_loss"
            ),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_torchtitan.py::test_with_a_rank_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_torchtitan.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof(
                "yes, within 0.1 %, with a data loader that can",
                "test_torchtitan.py::test_another_number_of_ranks_goes_on",
            ),
            _CONTROL: Proof(
                "the save hangs or aborts",
                "test_torchtitan.py::test_without_an_agreement_the_save_of_rank_zero_hangs_or_aborts",
            ),
        },
    ),
    FrameworkSupport(
        title="Keras",
        section="keras",
        packages=("keras", "torch"),
        example="keras_fit.py",
        oldest=_OLDEST,
        has_evaluations=True,
        proofs={
            _EXACT: Proof("yes", "test_keras.py::test_a_stop_in_mid_epoch_changes_no_loss"),
            _EVALUATION: Proof(_BIT_BY_BIT, "test_keras.py::test_a_stop_in_a_validation_changes_no_loss"),
            _APART: Proof(
                "rank 0 saves alone, no step lost",
                "test_keras.py::test_with_a_rank_that_cannot_agree_rank_zero_saves_alone",
            ),
            _KILLED: Proof(
                _BIT_BY_BIT, "test_keras.py::test_a_supervisor_that_is_killed_in_mid_agreement_loses_no_step"
            ),
            _RANKS: Proof("yes; each rank's data is the script's", _OTHER_RANKS),
            _CONTROL: Proof(
                "the other ranks save nothing", "test_keras.py::test_without_an_agreement_the_other_ranks_save_nothing"
            ),
        },
    ),
    FrameworkSupport(
        title="JAX with Orbax, two processes",
        section="jax-with-orbax",
        packages=("jax", "orbax-checkpoint"),
        lock="jax.txt",
        oldest="jax-oldest.txt",
        example="jax_orbax.py",
        proofs={
            _EXACT: Proof("yes", "test_jax.py::test_a_stop_at_one_step_changes_no_loss"),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_jax.py::test_with_a_process_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_jax.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof(
                "one and four processes, within 0.1 %", "test_jax.py::test_another_number_of_processes_goes_on"
            ),
            _CONTROL: Proof("nothing saved", "test_jax.py::test_without_an_agreement_nothing_is_saved"),
        },
    ),
    FrameworkSupport(
        title="TensorFlow with Keras, two workers",
        section="tensorflow-with-keras",
        packages=("tensorflow", "keras"),
        lock="tensorflow.txt",
        oldest="tensorflow-oldest.txt",
        example="tensorflow_workers.py",
        proofs={
            _EXACT: Proof("yes", "test_tensorflow.py::test_a_stop_at_one_step_changes_no_loss"),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_tensorflow.py::test_with_a_worker_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_tensorflow.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof(
                "one and four workers, within 0.1 %", "test_tensorflow.py::test_another_number_of_workers_goes_on"
            ),
            _CONTROL: Proof("nothing saved", "test_tensorflow.py::test_without_an_agreement_nothing_is_saved"),
        },
    ),
    FrameworkSupport(
        title="Ray Train, two workers",
        section="ray-train",
        packages=("ray", "torch"),
        lock="ray.txt",
        example="ray_train.py",
        proofs={
            _EXACT: Proof("yes", "test_ray.py::test_all_workers_stop_at_one_step_and_resume_exactly"),
            _APART: Proof(
                "nothing hangs, resumes from the last checkpoint",
                "test_ray.py::test_with_a_worker_that_cannot_agree_nothing_hangs",
            ),
            _KILLED: Proof(_BIT_BY_BIT, "test_ray.py::test_a_supervisor_killed_in_mid_agreement_loses_no_step"),
            _RANKS: Proof("one and three workers", "test_ray.py::test_another_number_of_workers_goes_on"),
            _CONTROL: Proof("nothing saved", "test_ray.py::test_without_an_agreement_nothing_is_saved"),
        },
    ),
)


def table() -> Iterator[str]:
    """The lines of the guide's table."""
    yield _row("framework", "newest version", "oldest version", *_COLUMNS)
    yield "|---" * (len(_COLUMNS) + 3) + "|"
    for each in ALL:
        cells = (_cell(each, column, "../../tests/frameworks") for column in _COLUMNS)
        yield _row(f"[{each.title}](#{each.section})", *each.versions(), *cells)


def costs_table() -> Iterator[str]:
    """The lines of the guide's table of what a stop and a start cost."""
    costs = json.loads(COSTS.read_text(encoding="ascii"))
    yield _row("framework", "steps trained again", "last step to exit, s", "start to first step, s", "goodput, %")
    yield "|---|--:|--:|--:|--:|"
    for each in ALL:
        if each.example in costs:
            cost = costs[each.example]
            seconds = (f"{cost['stop']:.1f}", f"{cost['start']:.1f}")
            yield _row(each.title, str(cost["again"]), *seconds, f"{100 * cost['goodput']:.1f}")


def _cell(support: FrameworkSupport, column: str, tests: str) -> str:
    proof = support.proofs.get(column)
    if proof is not None:
        return f"[{proof.says}]({tests}/{proof.file})"
    return "has none" if column == _EVALUATION and not support.has_evaluations else "not tried"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def version(package: str, lock: str) -> str:
    """The version of a package that a file of `requirements` pins."""
    pinned = (_ROOT / "requirements" / lock).read_text(encoding="ascii")
    found = re.search(rf"^{re.escape(package)}==(\S+)", pinned, re.MULTILINE)
    assert found is not None, f"{package} is not pinned"
    return found[1]


if __name__ == "__main__":
    for lines in (table(), costs_table()):
        sys.stdout.write("\n".join(lines) + "\n\n")
