"""Decoding by PyTorch, with one model or an ensemble in the precision of its weights."""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.errors import ConfigError, DeviceError
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.model.kernels import reorder_weights, reordered_weights
from transformer_mt.model.transformer import Transformer, evaluation_mode
from transformer_mt.system.console import logger
from transformer_mt.system.device import (
    DTYPES,
    choose_device,
    compute_settings,
    copy_to_device,
    is_out_of_memory,
    supports,
    total_memory,
)
from transformer_mt.system.worker_threads import MAX_WORKERS, WorkerThreads
from transformer_mt.text.batching import Batch, EncodedPairs, Indices, cut_micro_batches, flatten
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, PAD_ID
from transformer_mt.translation.options import CPU_BATCH_TOKENS, LoadOptions, SearchOptions
from transformer_mt.translation.runtime import EXTRA_LENGTH, Hypothesis, Source
from transformer_mt.translation.search import DecodingState, Sampler, beam_search, greedy

Array = npt.NDArray[np.float32]
MapBatches = Callable[[Callable[[Sequence[Indices]], list[Any]], Sequence[Indices]], list[Any]]

CUDA_BATCH_TOKENS_PER_GB = 1024
"""Default of `SearchOptions.batch_tokens` on CUDA, which grows with the memory: the caches of the
big model take some 0.5 GB per 1,024 positions in float32."""
CUDA_CHUNK_LINES = 8192, 8192
"""Lines of the first chunk and of the others on a GPU, whose batches are larger."""
SCORED_POSITIONS = 2048
"""Padded positions scored at once, or those of a longer pair: the logits of all are in memory."""


class PyTorchRuntime:
    """Decodes with a model on its device, which is in evaluation mode meanwhile.

    Args:
        model: One model or an ensemble.
        never: Ids that no hypothesis may have.
    """

    chunk_lines = 128, 4096

    def __init__(self, model: Transformer | Ensemble, never: Sequence[int] = ()) -> None:
        self.model, self.device_type = model, model.device.type
        self._never = torch.tensor(never, dtype=torch.int64, device=model.device)
        self._has_halved = False
        dtype = next(model.parameters()).dtype
        self.precision = next(name for name, each in DTYPES.items() if each == dtype)
        self.batch_tokens = CPU_BATCH_TOKENS
        if self.device_type == "cuda":
            self.batch_tokens = int(CUDA_BATCH_TOKENS_PER_GB * total_memory(model.device) / 1e9)
            self.chunk_lines = CUDA_CHUNK_LINES
        self._workers = WorkerThreads(MAX_WORKERS if self.device_type == "cpu" else 1)

    def decode(
        self, batches: Iterable[Sequence[Source]], options: SearchOptions
    ) -> Generator[list[list[Hypothesis]]]:
        """Decodes batches, on a CPU several at once; see `Runtime`."""
        decoded = self._workers.map(partial(self._decode_batch, options), batches)
        with (
            evaluation_mode(self.model),
            compute_settings(self.model.device, tf32=False),
            reordered_weights(self.model),
            closing(decoded),
        ):
            yield from decoded

    def _decode_batch(
        self,
        options: SearchOptions,
        sources: Sequence[Source],
        raise_if_cancelled: Callable[[], None],
    ) -> list[list[Hypothesis]]:
        """Decodes a batch, or its halves one by one if memory runs out."""
        try:
            with torch.autocast(self.device_type, enabled=False):  # the caller's
                return self._search(options, sources, raise_if_cancelled) if sources else []
        except (RuntimeError, MemoryError) as error:
            if len(sources) == 1 or not is_out_of_memory(error):
                raise
        # Outside `except`, so that the memory that the error holds is free.
        if not self._has_halved:
            self._has_halved = True
            message = "out of memory for %d sentences at once: decoded in halves, more slowly"
            logger.warning(message, len(sources))
        middle = len(sources) // 2
        decode = partial(self._decode_batch, options, raise_if_cancelled=raise_if_cancelled)
        return decode(sources[:middle]) + decode(sources[middle:])

    @torch.no_grad()
    def _search(
        self,
        options: SearchOptions,
        sources: Sequence[Source],
        raise_if_cancelled: Callable[[], None],
    ) -> list[list[Hypothesis]]:
        def next_logits(ids: Tensor, state: DecodingState) -> Tensor:
            raise_if_cancelled()
            logits = self.model.next_logits(ids, state)  # type: ignore[arg-type]
            return logits.index_fill_(1, self._never, -torch.inf) if len(self._never) else logits

        device = self.model.device
        # Not on the caller's default device: what is on CUDA cannot be pinned.
        rows = [torch.tensor((*source.ids, EOS_ID), device="cpu") for source in sources]
        src = copy_to_device(pad_sequence(rows, batch_first=True, padding_value=PAD_ID), device)
        limits = [len(source.ids) + EXTRA_LENGTH for source in sources]
        max_lengths = copy_to_device(torch.tensor(limits, device="cpu"), device)
        state = self.model.begin_decoding(src, max(limits))
        if options.sampling:
            sampler = Sampler(sources, options.sampling, device)
            drawn = greedy(next_logits, state, max_lengths, BOS_ID, EOS_ID, sampler.choose)
            return [[each] for each in sampler.score(drawn, limits, options.length_penalty)]
        if options.beam_size == 1 and not options.with_scores:
            rows_of_ids = greedy(next_logits, state, max_lengths, BOS_ID, EOS_ID)
            return [[Hypothesis(ids, math.nan)] for ids in rows_of_ids]
        width, alpha = options.beam_size, options.length_penalty
        beams = beam_search(next_logits, state, max_lengths, BOS_ID, EOS_ID, width, alpha)
        return [ranked[: options.n_best] for ranked in beams]

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """Computes log-probabilities; an ensemble's are those of its mean probabilities."""
        with evaluation_mode(self.model):
            return log_probabilities(self.model, EncodedPairs(flatten(sources), flatten(targets)))

    def attention(self, source: Sequence[int], target: Sequence[int]) -> dict[str, list[Array]]:
        """Computes the weights of encoder, decoder and cross-attention, (H, queries, keys) each."""
        with self._single_pair(source, target) as (model, pair):
            weights = model.attention_weights(pair.src, pair.tgt_in)
        return {kind: [_array(layer) for layer in layers] for kind, layers in weights.items()}

    def encoder_output(self, source: Sequence[int]) -> Array:
        """Encodes one sentence, (S, D)."""
        with self._single_pair(source, []) as (model, pair):
            return _array(model.encode(pair.src, model.src_mask(pair.src)))

    def logits(self, source: Sequence[int], target: Sequence[int]) -> Array:
        """Computes the logits at each position of one target, (T, V)."""
        with self._single_pair(source, target) as (model, pair):
            return _array(model(pair.src, pair.tgt_in))

    @contextmanager
    def _single_pair(
        self, source: Sequence[int], target: Sequence[int]
    ) -> Iterator[tuple[Transformer, Batch]]:
        """Gives a single model and a pair on its device, and sets how it computes meanwhile."""
        if not isinstance(self.model, Transformer):
            raise ConfigError("this needs a single model, not an ensemble: load one checkpoint")
        pair = EncodedPairs(flatten([source]), flatten([target])).batch(np.array([0]))
        device = self.model.device
        with (
            torch.no_grad(),
            evaluation_mode(self.model),
            compute_settings(device, tf32=False),
            torch.autocast(device.type, enabled=False),
        ):
            yield self.model, pair.to(device)


def _array(batch_of_one: Tensor) -> Array:
    return batch_of_one[0].float().cpu().numpy()


def load_checkpoints(checkpoints: Sequence[Checkpoint], options: LoadOptions) -> PyTorchRuntime:
    """Builds the model or ensemble from verified checkpoints with the same vocabulary.

    Raises:
        DeviceError: If the device is absent or does not support the precision.
    """
    device, precision = choose_device(options.device), options.precision or "fp32"
    if not supports(precision, device):
        raise DeviceError(
            f"precision {precision}: this {device.type} does not support it; choose fp32"
        )
    # A new model draws initial weights; this must not affect the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        models = [checkpoint.build_model(options.raw) for checkpoint in checkpoints]
    models = [model.to(device, DTYPES[precision]) for model in models]
    for model in models:
        reorder_weights(model)  # once, not for each text
    # The members of an ensemble have the same vocabulary, but may name different symbols of it.
    never = {i for each in checkpoints for i in each.vocab.symbol_ids(each.config.vocab.symbols)}
    joined = models[0] if len(models) == 1 else Ensemble(models).eval()
    return PyTorchRuntime(joined, sorted(never))


@torch.no_grad()
def log_probabilities(
    model: Transformer | Ensemble,
    pairs: EncodedPairs,
    map_batches: MapBatches = lambda function, items: function(items),
) -> list[float]:
    """Computes the log-probability of each target given its source.

    Args:
        model: On its device, in evaluation mode.
        pairs: Pairs of any length; none is left out.
        map_batches: Applies a function of batches to all of them, such as `SharedRuntime.map`.

    Returns:
        For each pair, the sum over its target tokens including EOS, in nats. An ensemble
        gives each token the mean of its members' probabilities.
    """
    if not len(pairs):
        return []
    order = np.lexsort(pairs.lengths)

    def score(batches: Sequence[Indices]) -> list[list[float]]:
        sums = [_sum_tokens(model, pairs.batch(batch).to(model.device)) for batch in batches]
        return [each.tolist() for each in sums]  # only at the end, since this waits for a GPU

    batches = cut_micro_batches(order, pairs.lengths, SCORED_POSITIONS)
    values = np.empty(len(pairs))
    for batch, sums in zip(batches, map_batches(score, batches), strict=True):
        values[batch] = sums
    return [float(value) for value in values]


def _sum_tokens(model: Transformer | Ensemble, batch: Batch) -> Tensor:
    """Sums the log-probabilities of the target tokens of B pairs, (B,), float64."""
    members: Any = [model] if isinstance(model, Transformer) else model.models
    of_members = []
    for member in members:
        settings = compute_settings(model.device, tf32=False)
        with settings, torch.autocast(model.device.type, enabled=False):
            logits = member(batch.src, batch.tgt_in).float()  # (B, T, V)
        losses = F.cross_entropy(
            logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD_ID, reduction="none"
        )  # (B * T,)
        of_members.append(-losses.view_as(batch.tgt_out))
    tokens = torch.stack(of_members).logsumexp(dim=0) - math.log(len(of_members))  # (B, T)
    return tokens.double().sum(dim=1)  # padding has 0
