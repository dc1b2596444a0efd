"""A script of TRL as its user would write it, with the SDK's callback: a tiny model, and nothing is downloaded.

torchrun --nproc-per-node 2 trl_sft.py DIRECTORY STEPS [evaluating]

With `evaluating`, each fifth step is followed by an evaluation of four batches, which may be stopped in its midst.
"""

import inspect
import sys

from datasets import Dataset
from kubeai.elastic.integrations.huggingface import ElasticCallback, latest_checkpoint, train
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

_WORDS = ("<pad>", "<eos>", *(f"word{number}" for number in range(30)))


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: number for number, word in enumerate(_WORDS)}, unk_token="<pad>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def _samples(count: int) -> Dataset:
    """Texts that go on as they have begun, so that there is something to learn."""
    texts = [" ".join(_WORDS[2 + (start + step) % 30] for step in range(8)) for start in range(count)]
    return Dataset.from_dict({"text": texts})


def _main(directory: str, steps: int, *evaluating: str) -> None:
    set_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    # The other attention asks CUDA whether it is capturing a graph, which the stand-in for CUDA cannot answer.
    config = LlamaConfig(vocab_size=len(_WORDS), attention_dropout=0.1, attn_implementation="eager", **size)
    arguments = SFTConfig(
        directory,
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=0.01,
        dataset_text_field="text",
        save_steps=10,
        eval_strategy="steps" if evaluating else "no",
        eval_steps=5,
        per_device_eval_batch_size=4,
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
    )
    tokenizer = "processing_class" if "processing_class" in inspect.signature(SFTTrainer).parameters else "tokenizer"
    trainer = SFTTrainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=_samples(128),
        eval_dataset=_samples(32) if evaluating else None,
        callbacks=[] if evaluating else [ElasticCallback()],
        **{tokenizer: _tokenizer()},
    )
    if evaluating:
        train(trainer)
    else:
        trainer.train(resume_from_checkpoint=latest_checkpoint(directory))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
