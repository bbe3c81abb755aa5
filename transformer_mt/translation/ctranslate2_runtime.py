"""Decoding by CTranslate2, with what `export` wrote for it; imports no PyTorch."""

import math
import os
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from operator import itemgetter
from typing import Any

from transformer_mt.checkpoints.exported import ExportedModel
from transformer_mt.errors import CheckpointError, ConfigError, DataError, DeviceError
from transformer_mt.system.console import logger
from transformer_mt.system.extras import require_package
from transformer_mt.system.launcher import cpus_of_process, is_launched, read_number
from transformer_mt.text.vocabulary import EOS_ID, Vocabulary
from transformer_mt.translation.options import CTRANSLATE2_BATCH_TOKENS, LoadOptions, SearchOptions
from transformer_mt.translation.runtime import EXTRA_LENGTH, Hypothesis, Source, length_penalty

_EXPONENTS = 1e-6, 3.0
"""Limits on the exponent of CTranslate2's length penalty: with 0 it ends a search early, and with
a large one the sums that are computed from its scores lose digits."""
_Scored = tuple[list[str], float]
"""Tokens of a hypothesis, EOS included if it has one, and its score."""


class CTranslate2Runtime:
    """Decodes with an exported model: on a CPU a batch per thread.

    Raises:
        CheckpointError: If CTranslate2 cannot load it.
        ConfigError: If CTranslate2 is not installed, or an option is for checkpoints alone.
        DeviceError: If the device is absent.
    """

    chunk_lines = 512, 4096

    def __init__(self, model: ExportedModel, options: LoadOptions) -> None:
        require_package("CTranslate2", "ctranslate2", "this")
        import ctranslate2

        for name, is_given in (("--raw", options.raw), ("--precision", options.precision)):
            if is_given:
                raise ConfigError(
                    f"{name} has no effect on an exported model, {model.path}; export it again"
                    " with --raw or another --quantization, or name the checkpoint"
                )
        longest = model.record.positions - EXTRA_LENGTH - 1
        if (options.max_length or 1) > longest:
            raise ConfigError(
                f"maximum length {options.max_length}: {model.path} has positions for {longest}"
                " pieces"
            )
        self.device_type = _choose_device(options.device, ctranslate2.get_cuda_device_count())
        self.precision = f"CTranslate2 {model.record.quantization}"
        self.batch_tokens = CTRANSLATE2_BATCH_TOKENS[self.device_type]
        threads = count_threads() if self.device_type == "cpu" else 1
        # More batches than threads are begun, so that none waits until results have been read and
        # the next lines encoded.
        self._waiting_threads = 4 * threads
        # They wait for CTranslate2: in the main thread, Python would handle no signals meanwhile.
        self._pool = ThreadPoolExecutor(self._waiting_threads)
        self._positions = model.record.positions
        self._src_tokens, self._tgt_tokens = vocabulary_tokens(model.vocab)
        self._tgt_ids = {token: i for i, token in enumerate(self._tgt_tokens)}
        symbols = model.vocab.symbol_ids(model.config.vocab.symbols)
        self._never = [[self._tgt_tokens[i]] for i in symbols]
        stored, compute_type = model.record.quantization, "default"
        supported = ctranslate2.get_supported_compute_types(self.device_type)
        if self.device_type == "cpu" and stored not in supported:
            # CTranslate2 would compute int16 in int8, with a warning that --quiet does not stop.
            compute_type = "float32"
            logger.info(f"{model.path}: this CPU does not support {stored}; computing in float32")
        has_own_gpu = self.device_type == "cuda" and is_launched()
        try:
            # It sets the threads of the libraries for the thread that makes it.
            self._translator = self._pool.submit(
                ctranslate2.Translator,
                str(model.path),
                self.device_type,
                device_index=read_number("LOCAL_RANK") if has_own_gpu else 0,
                inter_threads=threads,
                intra_threads=1,
                compute_type=compute_type,
            ).result()
        except (RuntimeError, ValueError, TypeError) as error:  # a path that is not UTF-8, too
            raise CheckpointError(f"{model.path}: CTranslate2 cannot load it: {error}") from None

    def decode(
        self, batches: Iterable[Sequence[Source]], options: SearchOptions
    ) -> Generator[list[list[Hypothesis]]]:
        """Decodes a batch per thread; see `Runtime`."""
        remaining = ([source.ids for source in batch] for batch in batches)
        pending = deque[Future[list[list[Hypothesis]]]]()
        try:
            for batch in islice(remaining, self._waiting_threads):
                pending.append(self._pool.submit(self._decode_batch, batch, options))
            while pending:
                hypotheses = pending.popleft().result()
                for batch in islice(remaining, 1):
                    pending.append(self._pool.submit(self._decode_batch, batch, options))
                yield hypotheses
        finally:
            for future in pending:
                future.cancel()

    def _decode_batch(
        self, sources: Sequence[Sequence[int]], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        batch = self._search(sources, options) if sources else []
        limits = [len(ids) + EXTRA_LENGTH for ids in sources]
        if options.with_scores or options.beam_size > 1:
            for i, (source, limit) in enumerate(zip(sources, limits, strict=True)):
                # One with a hypothesis that is longer than its own limit allows, once more.
                if max(len(tokens) for tokens, _ in batch[i]) > limit:
                    [batch[i]] = self._search([source], options)
        return [
            [self._hypothesis(tokens[:limit], score) for tokens, score in ranked[: options.n_best]]
            for ranked, limit in zip(batch, limits, strict=True)
        ]

    def _search(
        self, sources: Sequence[Sequence[int]], options: SearchOptions
    ) -> list[list[_Scored]]:
        """Decodes a batch, the best first; outputs have the length limit of its longest source."""
        exponent, alpha = _exponent(sources, options.length_penalty), options.length_penalty
        has_scores = options.with_scores or options.beam_size > 1
        results = self._translator.translate_batch(
            _tokens(sources, self._src_tokens),
            beam_size=options.beam_size,
            num_hypotheses=options.beam_size,
            length_penalty=exponent,
            return_scores=has_scores,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=max(map(len, sources)) + EXTRA_LENGTH,
            min_decoding_length=0,
            suppress_sequences=self._never,
        )
        if not has_scores:
            return [[(result.hypotheses[0], math.nan)] for result in results]

        def ranked(result: Any) -> list[_Scored]:
            """Ranks hypotheses by our length penalty."""
            scored = zip(result.hypotheses, result.scores, strict=True)
            rescored = [
                (tokens, score * len(tokens) ** exponent / length_penalty(len(tokens), alpha))
                for tokens, score in scored
            ]
            return sorted(rescored, key=itemgetter(1), reverse=True)

        return [ranked(result) for result in results]

    def _hypothesis(self, tokens: list[str], score: float) -> Hypothesis:
        ids = [self._tgt_ids[token] for token in tokens]
        return Hypothesis(ids[:-1] if ids[-1:] == [EOS_ID] else ids, score)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """Computes log-probabilities.

        Raises:
            DataError: If a line is too long for the model.
        """
        longest = max((len(ids) + 1 for ids in (*sources, *targets)), default=0)
        if longest > self._positions:
            raise DataError(
                f"a line of {longest - 1:,} pieces: the exported model has {self._positions:,}"
                " positions; load the checkpoint"
            )
        results = self._translator.score_batch(
            _tokens(sources, self._src_tokens),
            _tokens(targets, self._tgt_tokens),
            max_batch_size=self.batch_tokens,
            batch_type="tokens",
            max_input_length=0,
        )
        return [math.fsum(result.log_probs) for result in results]


def _exponent(sources: Sequence[Sequence[int]], alpha: float) -> float:
    """Returns the exponent of n^e that ranks outputs as long as the sources as our penalty does.

    CTranslate2 drops hypotheses of the last position by its own penalty.
    """
    n = sum(map(len, sources)) / len(sources)
    lowest, highest = _EXPONENTS
    return min(max(alpha * n / (5 + n), lowest), highest)


def _tokens(rows: Iterable[Sequence[int]], tokens: list[str]) -> list[list[str]]:
    return [[tokens[i] for i in ids] for ids in rows]


def vocabulary_tokens(vocab: Vocabulary) -> tuple[list[str], list[str]]:
    """Returns the source and the target pieces by id, as CTranslate2 has them.

    It knows the special pieces by their names, which both sides share.
    """
    src, tgt = (side.pieces(range(side.size)) for side in (vocab.src, vocab.tgt))
    return tgt[: EOS_ID + 1] + src[EOS_ID + 1 :], tgt


def _choose_device(name: str, cuda_devices: int) -> str:
    if name == "cuda" and not cuda_devices:
        raise DeviceError("device cuda: CTranslate2 finds no CUDA device; use cpu or auto")
    return "cuda" if name != "cpu" and cuda_devices else "cpu"


def count_threads() -> int:
    """Returns the CPU threads to use: OMP_NUM_THREADS, as for PyTorch, or those of this process."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) else cpus_of_process()
