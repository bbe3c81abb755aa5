"""The first reading of a training text: which pairs are kept, and the words to learn from."""

from collections import Counter
from dataclasses import dataclass, field

from transformer_mt.config.keys import Config, DataConfig
from transformer_mt.errors import DataError
from transformer_mt.system.console import ProgressBar, logger
from transformer_mt.text.cleaning import PIECE_MARKS, describe_dropped, reason_to_drop_text
from transformer_mt.text.corpus import CorpusSplit
from transformer_mt.text.normalization import normalize_text


@dataclass
class CleanedSplit:
    """What is counted while a split is read; words and sentences in the second reading."""

    word_counts: list[Counter[str]]  # one per side, or one for both if the vocabulary is shared
    kept: bytearray = field(default_factory=bytearray)  # for each pair, 1 if it is kept, else 0
    dropped: Counter[str] = field(default_factory=Counter)
    words: int = 0
    several_sentences: int = 0  # sources with more than one
    changed_wordless: int = 0  # sources without words whose target differs

    def nothing_left(self, config: DataConfig) -> DataError:
        """Makes the error for a split of which no pair is kept."""
        if not self.kept:
            return DataError(f"data.train = {config.train}: contains no pairs")
        return DataError(
            f"data.train = {config.train}: no training pair is left of {len(self.kept):,}"
            f" ({describe_dropped(self.dropped)}); see the limits under [data]"
        )


def clean_split(config: Config, split: CorpusSplit, count_words: bool) -> CleanedSplit:
    """Reads a split for the first time and decides, by their text, which pairs are kept.

    Raises:
        DataError: If none is, or targets have a word of `vocab.symbols`.
    """
    counts = [Counter[str]() for _ in range(1 if config.vocab.shared else 2)]
    cleaned, seen_pairs = CleanedSplit(counts), set[bytes]()
    cut, with_symbol = Counter[str](), 0
    for pair, weight in ProgressBar("reading", "pairs", items=split.read_weighted()):
        src, tgt = (normalize_text(text, config.data.normalize).strip() for text in pair)
        reason = reason_to_drop_text(config.data, src, tgt, seen_pairs)
        cleaned.kept.append(reason is None)
        if reason:
            cleaned.dropped[reason] += 1
            continue
        cut.update(text for mark, text in PIECE_MARKS.items() if mark in f"{src} {tgt} ")
        with_symbol += any(symbol in tgt for symbol in config.vocab.symbols)
        if count_words:
            counts[0].update(weight * src.split())
            counts[-1].update(weight * tgt.split())
    if not any(cleaned.kept):
        raise cleaned.nothing_left(config.data)
    for problem, lines in cut.items():
        logger.warning(f"data.train = {config.data.train}: {lines:,} pairs are {problem}")
    if with_symbol:
        raise DataError(
            f"vocab.symbols: {with_symbol:,} training targets have a symbol, but search never"
            " writes one; remove symbols from the targets, or these words from vocab.symbols"
        )
    return cleaned
