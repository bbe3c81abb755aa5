"""A trained model or an ensemble, with its operations: the object of the Python API."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.model.transformer import Transformer
from transformer_mt.system.processes import ALONE, Processes
from transformer_mt.text.corpus import RawPairs
from transformer_mt.text.encoded_pairs import encode_pairs
from transformer_mt.text.vocabulary import Vocabulary
from transformer_mt.translation.forced_decoding import (
    PairAttention,
    log_probabilities,
    pair_attention,
)
from transformer_mt.translation.options import DEFAULT_SEARCH, SearchOptions
from transformer_mt.translation.translator import Translation, Translator


@dataclass(frozen=True)
class TranslationModel:
    """One or several trained models, ready to translate.

    Attributes:
        checkpoints: The checkpoints they were loaded from; several models form an ensemble.
        model: The model or ensemble, on its device and in its precision.
        vocab: Its vocabulary.
        max_length: Source pieces after which a line is split.
    """

    checkpoints: list[Checkpoint]
    model: Transformer | Ensemble
    vocab: Vocabulary
    max_length: int

    @property
    def name(self) -> str:
        """The checkpoints, for messages."""
        return " and ".join(str(checkpoint.path) for checkpoint in self.checkpoints)

    def translator(
        self, options: SearchOptions = DEFAULT_SEARCH, processes: Processes = ALONE
    ) -> Translator:
        """Makes a translator of lines.

        Args:
            options: How to search.
            processes: The processes over which it distributes batches; all have this model.

        Raises:
            ConfigError: If the beam size exceeds half the vocabulary.
        """
        return Translator(self.model, self.vocab, self.max_length, options, processes)

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam_size: int = DEFAULT_SEARCH.beam_size,
        length_penalty: float = DEFAULT_SEARCH.length_penalty,
    ) -> list[str]:
        """Translates lines; an empty line gives an empty line.

        Args:
            lines: Source text; a line longer than `max_length` pieces is translated in parts.
            beam_size: Hypotheses kept per sentence; 1 is greedy search.
            length_penalty: Exponent of the length penalty of beam search.

        Returns:
            One detokenised line per source line.

        Raises:
            ConfigError: If the beam size exceeds half the vocabulary.
            TypeError: If `lines` is a string: write [line] for a single line.
        """
        _require_list(lines)
        options = SearchOptions(beam_size, length_penalty)
        return list(self.translator(options).translate(lines))

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
        _require_list(lines)
        beam_size = n if beam_size is None else beam_size
        if not 1 <= n <= beam_size:
            raise ConfigError(f"n = {n}: choose 1 to {beam_size}, the beam size")
        translator = self.translator(SearchOptions(beam_size, length_penalty, with_scores=True))
        return [line[:n] for line in translator.translate_chunk(lines)]

    def score(self, sources: Sequence[str], hypotheses: Sequence[str]) -> list[float]:
        """Computes the log-probability of given translations.

        This is the sum over the pieces of a translation and EOS, without length penalty. A line
        is encoded into its usual pieces and never split. An empty source is always translated
        to an empty line, which has the score 0.0; any other translation has minus infinity.

        Args:
            sources: Source text.
            hypotheses: One translation of each source.

        Returns:
            Natural logarithms, one per pair.

        Raises:
            DataError: If the numbers of hypotheses and sources differ.
        """
        _require_list(sources)
        _require_list(hypotheses)
        if len(sources) != len(hypotheses):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(sources)} sources")
        pairs = encode_pairs(RawPairs(list(sources), list(hypotheses)), self.vocab)
        scores = log_probabilities(self.model, pairs)
        for i in range(len(pairs)):
            if not len(pairs.src[i]):
                scores[i] = -math.inf if len(pairs.tgt[i]) else 0.0
        return scores

    def attention(self, source: str, hypothesis: str | None = None) -> PairAttention:
        """Computes the attention weights of a sentence and its translation.

        Args:
            source: Source text; it is not split.
            hypothesis: Its translation; None stands for the result of greedy search.

        Raises:
            ConfigError: If this is an ensemble.
        """
        if isinstance(self.model, Ensemble):
            raise ConfigError("attention weights need a single model, not an ensemble")
        [src_ids] = self.vocab.encode_src([source])
        if hypothesis is not None:
            [tgt_ids] = self.vocab.encode_tgt([hypothesis])
        else:
            # Empty for an empty source, which the model does not translate.
            tgt_ids = self.translator().decode([src_ids])[0][0].ids if src_ids else []
        return pair_attention(self.model, self.vocab, src_ids, tgt_ids)


def _require_list(lines: Sequence[str]) -> None:
    """Refuses a string, since it is also a sequence of strings (its characters)."""
    if isinstance(lines, str):
        raise TypeError("pass a list of lines, such as [line], not a string")
