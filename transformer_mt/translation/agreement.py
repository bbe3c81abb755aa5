"""Whether the other ways to compute a model's probabilities agree with its `forward`.

A change of the model that forgets one of them would halve BLEU, or export nonsense, in silence.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.errors import ConfigError
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.console import logger
from transformer_mt.system.device import compute_settings
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, Vocabulary
from transformer_mt.translation.options import DEFAULT_SEARCH
from transformer_mt.translation.pytorch_runtime import PyTorchRuntime
from transformer_mt.translation.runtime import Source

Score = Callable[[list[int], list[int]], float]
"""Computes the log-probability of a target and EOS, given its source, in nats."""

_ROUNDING = 0.01
"""Nats per token by which results may differ in float32; a forgotten position costs far more."""
_TOKENS = 12


@torch.no_grad()
def warn_of_decoding(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> None:
    """Warns if `next_logits`, which translates, gives other probabilities than `forward`.

    Args:
        model: The model, on its device.
        src: Source ids of one sentence, without EOS.
        tgt: Ids of its translation, without BOS and EOS.
    """
    ids = torch.tensor([[BOS_ID, *tgt]], device=model.device)
    source = torch.tensor([[*src, EOS_ID]], device=model.device)
    with evaluation_mode(model), compute_settings(model.device, tf32=False):
        whole = model(source, ids)[0].float().log_softmax(-1)  # (T, V)
        state = model.begin_decoding(source, ids.size(1))
        rows = [model.next_logits(column, state) for column in ids.t()]  # (1, V) each
    difference = (torch.cat(rows).float().log_softmax(-1) - whole).abs().max()
    if difference > _ROUNDING:
        logger.warning(
            f"decoding position by position (`decode_position` in model/) differs by"
            f" {float(difference):.2g} nats from the whole sequence (`forward`), which is trained:"
            " translations and BLEU will be wrong until both compute the same"
        )


def require_same_scores(checkpoint: Checkpoint, model: Transformer, score: Score) -> None:
    """Scores the translation of random ids with a model and with what was exported of it.

    Args:
        checkpoint: The checkpoint of the model.
        model: The model, on a CPU.
        score: Scores with the exported model, whose weights are float32.

    Raises:
        ConfigError: If the scores differ by more than rounding.
    """
    drawn = torch.Generator().manual_seed(1)
    size = (_TOKENS,)
    src = torch.randint(EOS_ID + 1, checkpoint.vocab.src.size, size, generator=drawn).tolist()
    runtime = PyTorchRuntime(model)
    [[[greedy]]] = runtime.decode([[Source(tuple(src))]], DEFAULT_SEARCH)
    [own], other = runtime.score([src], [greedy.ids]), score(src, greedy.ids)
    if not abs(own - other) <= _ROUNDING * (len(greedy.ids) + 1):  # also if one is NaN
        raise ConfigError(
            f"{checkpoint.path}: the exported model gives other scores than the checkpoint"
            f" ({other:.2f} and {own:.2f} nats for one translation): change"
            " export_ctranslate2.py or export_transformers.py as the model was changed"
        )


def score_with_ctranslate2(folder: Path, vocab: Vocabulary) -> Score:
    """Returns the scores of a directory that CTranslate2 loads."""
    import ctranslate2

    from transformer_mt.translation.ctranslate2_runtime import vocabulary_tokens

    translator = ctranslate2.Translator(str(folder))
    src_tokens, tgt_tokens = vocabulary_tokens(vocab)

    def score(src: list[int], tgt: list[int]) -> float:
        source, target = [src_tokens[i] for i in src], [tgt_tokens[i] for i in tgt]
        [result] = translator.score_batch([source], [target])
        return math.fsum(result.log_probs)

    return score


def score_with_transformers(folder: Path) -> Score:
    """Returns the scores of a directory that was exported for transformers, which is installed."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    @torch.no_grad()
    def score(src: list[int], tgt: list[int]) -> float:
        ids, tgt_in = torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]])
        logits = model(input_ids=ids, decoder_input_ids=tgt_in).logits[0]  # (T, V)
        tgt_out = torch.tensor([*tgt, EOS_ID])
        return -float(F.cross_entropy(logits, tgt_out, reduction="sum"))

    return score
