"""A trained model or an ensemble, with its operations: the object of the Python API."""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import CheckpointError, ConfigError, DataError, DeviceError
from transformer_mt.model.cpu_kernels import pack_weights
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.device import DTYPES, choose_device, compute_settings, supports
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.batching import Batch, EncodedPairs, encode_pairs, flatten
from transformer_mt.text.splitting import LineSplitter
from transformer_mt.text.vocabulary import Vocabulary
from transformer_mt.translation.forced_decoding import log_probabilities
from transformer_mt.translation.options import DEFAULT_SEARCH, LoadOptions, SearchOptions
from transformer_mt.translation.translator import Translation, Translator

if TYPE_CHECKING:
    from transformer_mt.model.ensemble import Ensemble

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PairAttention:
    """Attention weights of a sentence pair: for each layer, an array (H, queries, keys).

    Each row of weights sums to 1.

    Attributes:
        source: The source text.
        src_pieces: The S source pieces, EOS last.
        tgt_pieces: The T inputs of the decoder, BOS first.
        predicted_pieces: The T pieces that the decoder predicts from these, EOS last; they label
            the rows of `decoder` and `cross`.
        encoder: Encoder self-attention, (H, S, S) each.
        decoder: Decoder self-attention, (H, T, T) each; weights of later inputs are 0.
        cross: Attention of the decoder to the encoder's output, (H, T, S) each.
    """

    source: str
    src_pieces: list[str]
    tgt_pieces: list[str]
    predicted_pieces: list[str]
    encoder: list[Array]
    decoder: list[Array]
    cross: list[Array]

    def __repr__(self) -> str:
        return (
            f"<PairAttention of {reprlib.repr(self.source)}: {len(self.src_pieces)} source and"
            f" {len(self.tgt_pieces)} target pieces, {len(self.encoder)} + {len(self.decoder)}"
            f" layers, {len(self.cross[0])} heads>"
        )


@dataclass(frozen=True)
class TranslationModel:
    """One or several trained models, ready to translate.

    The model, or the ensemble of several, is on its device and in its precision.
    """

    checkpoints: list[Checkpoint]
    model: "Transformer | Ensemble"
    vocab: Vocabulary
    splitter: LineSplitter

    def __repr__(self) -> str:
        data, parameters = self.checkpoints[0].config.data, list(self.model.parameters())
        return (
            f"<TranslationModel {self.name}: {data.src_lang} to {data.tgt_lang},"
            f" {sum(p.numel() for p in parameters) / 1e6:.1f} million parameters,"
            f" {str(parameters[0].dtype).removeprefix('torch.')} on {self.model.device}>"
        )

    @property
    def name(self) -> str:
        """The checkpoints, for messages."""
        return " and ".join(str(checkpoint.path) for checkpoint in self.checkpoints)

    def translator(
        self, options: SearchOptions = DEFAULT_SEARCH, processes: Processes = ALONE
    ) -> Translator:
        """Makes a translator of lines that shares batches with processes that have this model."""
        return Translator(self.model, self.vocab, self.splitter, options, processes)

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam_size: int = DEFAULT_SEARCH.beam_size,
        length_penalty: float = DEFAULT_SEARCH.length_penalty,
    ) -> list[str]:
        """Translates lines; an empty line gives an empty line.

        Args:
            lines: Source text; a line longer than those of the training text, which may be any of
                several sentences, is translated in parts.
            beam_size: Hypotheses kept per sentence; 1 is greedy search.
            length_penalty: Exponent of the length penalty of beam search.

        Raises:
            ConfigError: If the beam size exceeds half the vocabulary.
            TypeError: If `lines` is a string (write [line] for a single line), or a line is not.
        """
        _require_lines(lines)
        options = SearchOptions(beam_size, length_penalty)
        return self.translator(options).translate(lines)

    def n_best(
        self,
        lines: Sequence[str],
        *,
        n: int,
        beam_size: int | None = None,
        length_penalty: float = DEFAULT_SEARCH.length_penalty,
    ) -> list[list[Translation]]:
        """Finds the best translations of each line by beam search.

        Args:
            lines: Source text.
            n: Translations per line.
            beam_size: Hypotheses kept per sentence, at least `n`; None is `n`.
            length_penalty: Exponent of the length penalty; 0 makes scores log-probabilities.

        Returns:
            For each line, `n` translations with their scores, the best first.

        Raises:
            ConfigError: If `n` is not between 1 and the beam size, or the beam size exceeds half
                the vocabulary.
        """
        _require_lines(lines)
        if n < 1:
            raise ConfigError(f"n = {n}: choose 1 or more")
        beam_size = n if beam_size is None else beam_size
        translator = self.translator(SearchOptions(beam_size, length_penalty, with_scores=True))
        if n > beam_size:
            raise ConfigError(f"n = {n}: choose 1 to {beam_size}, the beam size")
        return [line[:n] for line in translator.n_best(lines)]

    def score(self, sources: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Computes the log-probability in nats of one given translation of each source.

        This is the sum over the pieces of a translation and EOS, without length penalty. A line
        is encoded into its usual pieces and never split. An empty source is always translated
        to an empty line, which has the score 0.0; any other translation has minus infinity.

        Raises:
            DataError: If the numbers of hypotheses and sources differ.
        """
        _require_lines(sources)
        _require_lines(hypotheses)
        if len(sources) != len(hypotheses):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(sources)} sources")
        pairs = encode_pairs(sources, hypotheses, self.vocab)
        scores = log_probabilities(self.model, pairs)
        for i in range(len(pairs)):
            if not len(pairs.src[i]):
                scores[i] = -math.inf if len(pairs.tgt[i]) else 0.0
        return scores

    def attention(self, source: str, hypothesis: str | None = None) -> PairAttention:
        """Computes the attention weights of one sentence and its translation.

        Args:
            source: Source text; it is not split.
            hypothesis: Its translation; None stands for the result of greedy search.

        Raises:
            ConfigError: If this is an ensemble.
            TypeError: If an argument is not a string: call this for each sentence.
        """
        model, pair = self._single_pair(source, hypothesis)
        with compute_settings(model.device, tf32=False):
            weights = model.attention_weights(pair.src, pair.tgt_in)
        return PairAttention(
            source,
            self.vocab.src.pieces(pair.src[0].tolist()),
            self.vocab.tgt.pieces(pair.tgt_in[0].tolist()),
            self.vocab.tgt.pieces(pair.tgt_out[0].tolist()),
            [_array(layer) for layer in weights.encoder],
            [_array(layer) for layer in weights.decoder],
            [_array(layer) for layer in weights.cross],
        )

    @torch.no_grad()
    def encoder_output(self, source: str) -> Array:
        """Computes the encoder's output for one sentence, which is not split.

        Returns:
            A vector for each source piece and EOS, (S, D); `attention` gives the pieces.

        Raises:
            ConfigError, TypeError: As `attention`.
        """
        model, pair = self._single_pair(source, "")
        with compute_settings(model.device, tf32=False):
            return _array(model.encode(pair.src))

    @torch.no_grad()
    def logits(self, source: str, hypothesis: str | None = None) -> Array:
        """Computes the logits of every target piece at each position of one translation.

        Args:
            source: Source text; it is not split.
            hypothesis: Its translation; None stands for the result of greedy search.

        Returns:
            A row for each of the translation's pieces and EOS, (T, V), computed from the pieces
            before it; the `predicted_pieces` of `attention` label the rows, and
            `vocab.tgt.pieces(range(V))` the columns.

        Raises:
            ConfigError, TypeError: As `attention`.
        """
        model, pair = self._single_pair(source, hypothesis)
        with compute_settings(model.device, tf32=False):
            return _array(model(pair.src, pair.tgt_in))

    def _single_pair(self, source: str, hypothesis: str | None) -> tuple[Transformer, Batch]:
        """Gives the model, which must be a single one, and a batch of one pair.

        No hypothesis stands for the result of greedy search.
        """
        if not isinstance(self.model, Transformer):
            raise ConfigError("this needs a single model, not an ensemble: load one checkpoint")
        for text in (source, "" if hypothesis is None else hypothesis):
            if not isinstance(text, str):
                raise TypeError(
                    f"pass one sentence as a str, not {type(text).__name__}; call this for each"
                    " sentence"
                )
        [src_ids] = self.vocab.src.encode([source])
        if hypothesis is not None:
            [tgt_ids] = self.vocab.tgt.encode([hypothesis])
        else:
            # Empty for an empty source, which the model does not translate.
            greedy = self.translator(SearchOptions(beam_size=1))
            tgt_ids = greedy.decode([src_ids])[0][0].ids if src_ids else []
        pair = EncodedPairs(flatten([src_ids]), flatten([tgt_ids]))
        return self.model, pair.batch(np.array([0])).to(self.model.device)


def _array(batch_of_one: Tensor) -> Array:
    return batch_of_one[0].float().cpu().numpy()


def _require_lines(lines: Sequence[str]) -> None:
    """Refuses a string, since it is also a sequence of strings, and lines that are not strings."""
    if isinstance(lines, str):
        raise TypeError("pass a list of lines, such as [line], not a string")
    for i, line in enumerate(lines):
        if not isinstance(line, str):
            raise TypeError(f"item {i} of the lines is {type(line).__name__}: a line must be a str")


def find_checkpoints(paths: Sequence[Path]) -> list[Checkpoint]:
    """Reads and verifies the checkpoints of an ensemble, or a single one; a run gives its best.

    Raises:
        CheckpointError: If one is missing or damaged, or the vocabularies differ.
    """
    checkpoints = [find_checkpoint(path) for path in paths]
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if not other.vocab.has_same_ids(first.vocab):
            raise CheckpointError(
                f"{other.path}: its vocabulary differs from that of {first.path};"
                " the models of an ensemble need the same (train with vocab.path)"
            )
    return checkpoints


def share_checkpoints(checkpoints: list[Checkpoint], processes: Processes) -> list[Checkpoint]:
    """Gives all processes the main process's checkpoints; each reads them from its own disk.

    All processes call this; only the argument of the main one counts.

    Raises:
        CheckpointError: If one is missing or damaged, or differs on another machine.
    """
    paths = processes.broadcast([checkpoint.path for checkpoint in checkpoints])
    if not processes.is_main:
        checkpoints = find_checkpoints(paths)
    digests = [checkpoint.digest for checkpoint in checkpoints]
    if any(other != digests for other in processes.gather(digests)):
        names = " and ".join(map(str, paths))
        raise CheckpointError(f"{names}: not the same checkpoint on all machines")
    return checkpoints


def build_translation_model(
    checkpoints: list[Checkpoint], options: LoadOptions
) -> TranslationModel:
    """Builds the model or ensemble from verified checkpoints with the same vocabulary.

    Raises:
        CheckpointError: If the weights do not fit the configuration of a checkpoint.
        ConfigError: If the precision is unknown or the maximum length below 1.
        DeviceError: If the device is absent or does not support the precision.
    """
    device, precision = choose_device(options.device), options.precision
    if precision not in DTYPES:
        raise ConfigError(f"precision {precision}: choose {', '.join(DTYPES)}")
    if not supports(precision, device):
        raise DeviceError(
            f"precision {precision}: this {device.type} does not support it; choose fp32"
        )
    if options.max_length is not None and options.max_length < 1:
        raise ConfigError(f"maximum length {options.max_length}: choose 1 or more")
    # A new model draws initial weights; this must not affect the caller's random numbers.
    with torch.random.fork_rng(devices=[]):
        models = [checkpoint.build_model(options.raw) for checkpoint in checkpoints]
    models = [model.to(device, DTYPES[precision]) for model in models]
    model = models[0] if len(models) == 1 else _ensemble(models)
    pack_weights(model)  # once, not for each chunk of lines
    splitter = checkpoints_splitter(checkpoints, options.max_length)
    return TranslationModel(checkpoints, model, checkpoints[0].vocab, splitter)


def _ensemble(models: Sequence[Transformer]) -> "Ensemble":
    from transformer_mt.model.ensemble import Ensemble

    return Ensemble(models).eval()


def checkpoints_splitter(
    checkpoints: Sequence[Checkpoint], max_length: int | None = None
) -> LineSplitter:
    """Splits lines as that of the checkpoints needs it which has seen the shortest."""
    data = min((each.config.data for each in checkpoints), key=lambda data: data.max_length)
    statistics = [each.state.sources for each in checkpoints if each.state.sources]
    statistics.sort(key=lambda sources: (not sources.is_single_sentences, sources.percentile))
    return LineSplitter(checkpoints[0].vocab.src, data, next(iter(statistics), None), max_length)
