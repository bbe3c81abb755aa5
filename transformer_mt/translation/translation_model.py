"""A trained model or an ensemble, with its operations: the object of the Python API."""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from transformer_mt.checkpoints.layout import EXPORT, digest_of_files
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.config.keys import DataConfig
from transformer_mt.errors import CheckpointError, ConfigError, DataError, ForkError
from transformer_mt.system.manifest import read_manifest
from transformer_mt.text.splitting import LineSplitter, SourceStatistics
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, Vocabulary
from transformer_mt.translation.options import DEFAULT_SEARCH, LoadOptions, Sampling, SearchOptions
from transformer_mt.translation.runtime import Runtime, Source
from transformer_mt.translation.translator import Translation, Translator

if TYPE_CHECKING:
    from transformer_mt.checkpoints.checkpoint import Checkpoint
    from transformer_mt.checkpoints.exported import ExportedModel
    from transformer_mt.translation.pytorch_runtime import Array, PyTorchRuntime

SavedModels: TypeAlias = "list[Checkpoint] | list[ExportedModel]"
"""One or several checkpoints, which form an ensemble, or an exported model."""

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, eq=False)
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
    encoder: "list[Array]" = field(repr=False)
    decoder: "list[Array]" = field(repr=False)
    cross: "list[Array]" = field(repr=False)


@dataclass(frozen=True, eq=False)
class TranslationModel:
    """One or several trained models, ready to translate.

    Attributes:
        checkpoints: What was loaded: one or several checkpoints, or an exported model.
        runtime: The model, or the ensemble of several, on its device and in its precision.
        vocab: Its vocabulary.
        splitter: Splits lines as it needs it.
        process: Id of the process that loaded it; others must not use it.
    """

    checkpoints: SavedModels
    runtime: Runtime
    vocab: Vocabulary
    splitter: LineSplitter
    process: int = field(default_factory=os.getpid)

    def __repr__(self) -> str:
        data, runtime = self.checkpoints[0].config.data, self.runtime
        languages = f"{data.src_lang} to {data.tgt_lang}"
        computes = f"{runtime.precision} on {runtime.device_type}"
        return f"<TranslationModel {self.name}: {languages}, {computes}>"

    def __reduce__(self) -> NoReturn:
        """Refuses pickling and copying by TypeError, as Python's own threads and files do."""
        raise TypeError(
            f"{self.name} cannot be pickled or copied: pass its path, and load it in each process"
        )

    @property
    def name(self) -> str:
        """The paths, for messages."""
        return " and ".join(str(checkpoint.path) for checkpoint in self.checkpoints)

    @property
    def model(self) -> Any:
        """The PyTorch module.

        Raises:
            ConfigError: If this is an exported model.
        """
        return self._pytorch().model

    def _require_loading_process(self) -> None:
        """Raises ForkError in a forked process, which lacks the threads that decoding waits for."""
        if os.getpid() != self.process:
            raise ForkError(
                f"{self.name} was loaded before a fork: load models only in the processes that use"
                " them, or start these by spawn"
            )

    def translator(self, options: SearchOptions = DEFAULT_SEARCH) -> Translator:
        """Makes a translator of lines.

        Raises:
            ConfigError: If an option of the search is wrong, or does not suit an exported model.
        """
        self._require_loading_process()
        if options.sampling:
            self._pytorch()
        return Translator(self.runtime, self.vocab, self.splitter, options)

    def translate(
        self,
        lines: Iterable[str],
        *,
        beam_size: int = DEFAULT_SEARCH.beam_size,
        length_penalty: float = DEFAULT_SEARCH.length_penalty,
    ) -> list[str]:
        """Translates lines; an empty line gives an empty line.

        Args:
            lines: Source text; a line longer than those of the training text, which may be any of
                several sentences, is translated in parts. What has no letter is copied.
            beam_size: Hypotheses kept per sentence; 1 is greedy search.
            length_penalty: Exponent of the length penalty of beam search.

        Raises:
            ConfigError: If the beam size exceeds half the vocabulary.
            TypeError: If `lines` is a string (write [line] for a single line), or a line is not.
        """
        options = SearchOptions(beam_size, length_penalty)
        return self.translator(options).translate(_list_lines(lines))

    def n_best(
        self,
        lines: Iterable[str],
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
        rows = _list_lines(lines)
        beam_size = n if beam_size is None else beam_size
        if not 1 <= n <= beam_size:
            raise ConfigError(f"n = {n}: choose 1 or more, and at most the beam size")
        options = SearchOptions(beam_size, length_penalty, with_scores=True, n_best=n)
        return self.translator(options).n_best(rows)

    def sample(
        self,
        lines: Iterable[str],
        *,
        top_k: int | None = None,
        temperature: float = Sampling.temperature,
        seed: int = Sampling.seed,
    ) -> list[str]:
        """Draws a translation of each line at random, by the probabilities of the model.

        Args:
            lines: Source text. What is drawn for a line depends on its position in the list.
            top_k: Pieces that can be drawn at a position, the most probable ones; None is all.
            temperature: Divisor of the logits: the lower, the more often probable pieces are drawn.
            seed: Another one gives other translations.

        Raises:
            ConfigError: If an option is wrong, or this is an exported model.
        """
        options = SearchOptions(sampling=Sampling(top_k, temperature, seed))
        return self.translator(options).translate(_list_lines(lines))

    def score(self, sources: Iterable[str], hypotheses: Iterable[str]) -> list[float]:
        """Computes the log-probability in nats of one given translation of each source.

        This is the sum over the pieces of a translation and EOS, without length penalty. A line
        is encoded into its usual pieces and never split. An empty source is always translated
        to an empty line, which has the score 0.0; any other translation has minus infinity.

        Raises:
            DataError: If the numbers of hypotheses and sources differ, or a line is too long for
                an exported model.
        """
        self._require_loading_process()
        sources, hypotheses = _list_lines(sources), _list_lines(hypotheses)
        if len(sources) != len(hypotheses):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(sources)} sources")
        src, tgt = self.vocab.src.encode(sources), self.vocab.tgt.encode(hypotheses)
        scores = self.runtime.score(src, tgt)
        for i, (src_ids, tgt_ids) in enumerate(zip(src, tgt, strict=True)):
            if not src_ids:
                scores[i] = -math.inf if tgt_ids else 0.0
        return scores

    def attention(self, source: str, hypothesis: str | None = None) -> PairAttention:
        """Computes the attention weights of one sentence and its translation.

        Args:
            source: Source text; it is not split.
            hypothesis: Its translation; None stands for the result of greedy search.

        Raises:
            ConfigError: If this is an ensemble or an exported model.
            TypeError: If an argument is not a string: call this for each sentence.
        """
        runtime, (src_ids, tgt_ids) = self._pytorch(), self._encode_pair(source, hypothesis)
        return PairAttention(
            source,
            self.vocab.src.pieces([*src_ids, EOS_ID]),
            self.vocab.tgt.pieces([BOS_ID, *tgt_ids]),
            self.vocab.tgt.pieces([*tgt_ids, EOS_ID]),
            **runtime.attention(src_ids, tgt_ids),
        )

    def encoder_output(self, source: str) -> "Array":
        """Computes the encoder's output for one sentence, which is not split.

        Returns:
            A vector for each source piece and EOS, (S, D); `attention` gives the pieces.

        Raises:
            ConfigError, TypeError: As `attention`.
        """
        runtime, (src_ids, _) = self._pytorch(), self._encode_pair(source, "")
        return runtime.encoder_output(src_ids)

    def logits(self, source: str, hypothesis: str | None = None) -> "Array":
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
        runtime, ids = self._pytorch(), self._encode_pair(source, hypothesis)
        return runtime.logits(*ids)

    def _pytorch(self) -> "PyTorchRuntime":
        """Returns the runtime that tells more than translations and scores."""
        self._require_loading_process()
        first = self.checkpoints[0]
        if first.is_exported:
            raise ConfigError(
                f"{first.path}: an exported model gives only its best translations and scores; load"
                f" the checkpoint that it was made from, {first.record.checkpoint}"
            )
        return self.runtime  # type: ignore[return-value]

    def _encode_pair(self, source: str, hypothesis: str | None) -> tuple[list[int], list[int]]:
        """Encodes one pair; no hypothesis stands for the result of greedy search."""
        for text in (source, "" if hypothesis is None else hypothesis):
            if not isinstance(text, str):
                raise TypeError(
                    f"pass one sentence as a str, not {type(text).__name__}; call this for each"
                    " sentence"
                )
        [src_ids] = self.vocab.src.encode(_list_lines([source]))
        if hypothesis is not None:
            [tgt_ids] = self.vocab.tgt.encode(_list_lines([hypothesis]))
            return src_ids, tgt_ids
        if not src_ids:  # which the model does not translate
            return [], []
        [[[greedy]]] = self.runtime.decode([[Source(tuple(src_ids))]], DEFAULT_SEARCH)
        return src_ids, greedy.ids


def _list_lines(lines: Iterable[str]) -> list[str]:
    """Lists lines, with U+FFFD for lone surrogates, which are not text.

    Raises:
        TypeError: If this is a string, which is also a sequence of strings, or something else
            whose items are not its lines, or a line is not a string.
    """
    rows = list(lines)
    is_table = getattr(lines, "ndim", 1) > 1  # the items of one of pandas are its columns' names
    if is_table or isinstance(lines, (str, bytes, Mapping, Set)):
        raise TypeError(f"pass a list of lines, such as [line], not a {type(lines).__name__}")
    for i, line in enumerate(rows):
        if not isinstance(line, str):
            raise TypeError(f"item {i} of the lines is {type(line).__name__}: a line must be a str")
    return [_SURROGATE.sub("\ufffd", line) for line in rows]


def find_models(paths: Sequence[Path]) -> SavedModels:
    """Reads and verifies the checkpoints of an ensemble, a single one, or an exported model.

    A run gives its best checkpoint.

    Raises:
        CheckpointError: If one is missing or damaged, or the vocabularies differ.
        ConfigError: If an exported model is one of several, or they translate other languages.
    """
    if exported := [path for path in paths if (path / EXPORT).exists()]:
        if len(paths) > 1:
            raise ConfigError(f"{exported[0]}: an exported model cannot be part of an ensemble")
        from transformer_mt.checkpoints.exported import load_exported

        return [load_exported(exported[0])]
    checkpoints = [find_checkpoint(path) for path in paths]
    require_one_direction(checkpoint.config.data for checkpoint in checkpoints)
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if not other.vocab.has_same_ids(first.vocab) or other.vocab.form != first.vocab.form:
            raise CheckpointError(
                f"{other.path}: its vocabulary, or data.normalize, differs from that of"
                f" {first.path}; the models of an ensemble need the same (train with vocab.path)"
            )
    return checkpoints


def require_one_direction(corpora: Iterable[DataConfig]) -> None:
    """Raises ConfigError if models of these corpora cannot translate the same text."""
    directions = dict.fromkeys(f"{data.src_lang} to {data.tgt_lang}" for data in corpora)
    if len(directions) > 1:
        raise ConfigError(f"the runs translate {', '.join(directions)}: use them one by one")


def build_translation_model(models: SavedModels, options: LoadOptions) -> TranslationModel:
    """Loads verified models with the runtime that is theirs.

    Raises:
        CheckpointError: If weights do not fit the configuration of their checkpoint, or another
            model has taken its place.
        ConfigError: If an option is wrong, or does not suit an exported model.
        DeviceError: If the device is absent or does not support the precision.
    """
    if options.max_length is not None and options.max_length < 1:
        raise ConfigError(f"maximum length {options.max_length}: choose 1 or more")
    splitter, vocab = models_splitter(models, options), models[0].vocab
    if models[0].is_exported:
        from transformer_mt.translation.ctranslate2_runtime import CTranslate2Runtime

        runtime: Runtime = CTranslate2Runtime(models[0], options)
    else:
        from transformer_mt.translation.pytorch_runtime import load_checkpoints

        runtime = load_checkpoints(models, options)
    for model in models:  # a long list of files may have been read since they were verified
        if digest_of_files(read_manifest(model.path)) != model.digest:
            raise CheckpointError(f"{model.path}: was replaced while it was loaded; try again")
    return TranslationModel(models, runtime, vocab, splitter)


def models_splitter(models: SavedModels, options: LoadOptions) -> LineSplitter:
    """Splits lines as that of the models needs it which has seen the shortest."""
    data = min((each.config.data for each in models), key=lambda data: data.max_length)
    shortest = SourceStatistics.combine(min, (each.sources for each in models))
    vocab, symbols = models[0].vocab.src, [s for each in models for s in each.config.vocab.symbols]
    return LineSplitter(vocab, data, shortest, options.max_length, options.split, symbols)
