"""SentencePiece vocabularies: train, load, encode, decode.

Between encoding and decoding, the program works with ids only.
"""

import heapq
import io
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import sentencepiece

from transformer_mt.config.keys import NormalForm, VocabConfig
from transformer_mt.errors import ConfigError, DataError
from transformer_mt.text.normalization import normalize_text

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

SHARED = "vocab.model"
"""File name of a vocabulary that both languages share."""
_SPM_LOG_INFO, _SPM_LOG_ERROR = 0, 2
_BYTE = re.compile("<0x[0-9A-F]{2}>")

WORD_MARK = "▁"
"""Stands for the space before a word, at the beginning of the word's first piece."""


class Vocabulary:
    """The pieces of the source and of the target language, with their ids.

    Args:
        src_model: Serialised SentencePiece model of the source language.
        tgt_model: Likewise for the target language; the same bytes if the vocabulary is shared.
        form: How text is normalised before it is encoded, a value of `data.normalize`.

    Raises:
        DataError: If the bytes are not a SentencePiece model, or its special ids are unsuitable.
    """

    def __init__(self, src_model: bytes, tgt_model: bytes, form: NormalForm = "none") -> None:
        self.src_model, self.tgt_model, self.form = src_model, tgt_model, form
        self.src = SentencePieceModel(src_model, form)
        self.tgt = self.src if self.shared else SentencePieceModel(tgt_model, form)

    @property
    def shared(self) -> bool:
        """Whether both languages use the same pieces."""
        return self.src_model == self.tgt_model

    def describe(self) -> str:
        """Says how many pieces there are."""
        if self.shared:
            return f"{self.src.size:,} pieces"
        return f"{self.src.size:,} source and {self.tgt.size:,} target pieces"

    def has_same_ids(self, other: "Vocabulary") -> bool:
        """Returns whether another vocabulary has the same pieces with the same ids."""
        return (self.src_model, self.tgt_model) == (other.src_model, other.tgt_model)

    def symbol_ids(self, symbols: list[str]) -> list[int]:
        """Returns the target ids of `vocab.symbols`.

        Raises:
            ConfigError: If one is not a user-defined symbol of both languages.
        """
        for side in (self.src, self.tgt) if symbols else ():
            texts = side.table().ids
            for symbol, ids in zip(symbols, side.encode(symbols), strict=True):
                if side.pieces(ids[-1:]) != [symbol] or symbol in texts:
                    raise ConfigError(
                        f"vocab.symbols: {symbol} is not a user-defined symbol of the existing"
                        " vocabulary, or data.normalize changes it; leave it out, or learn another"
                        " vocabulary"
                    )
        return [ids[-1] for ids in self.tgt.encode(symbols)]

    def save(self, directory: Path) -> list[Path]:
        """Writes the model files, one if shared and otherwise two, and returns their paths."""
        names = [SHARED] if self.shared else ["src.model", "tgt.model"]
        for name, model in zip(names, (self.src_model, self.tgt_model), strict=False):
            (directory / name).write_bytes(model)
        return [directory / name for name in names]

    @classmethod
    def load(cls, path: Path, form: NormalForm = "none") -> "Vocabulary":
        """Reads what `save` wrote, or a SentencePiece model file.

        Raises:
            DataError: If a file is missing or is not a SentencePiece model.
        """
        shared = path if path.is_file() else path / SHARED
        if shared.exists():
            return cls.load_files(shared, shared, form)
        return cls.load_files(path / "src.model", path / "tgt.model", form)

    @classmethod
    def load_files(cls, src_path: Path, tgt_path: Path, form: NormalForm = "none") -> "Vocabulary":
        """Reads two SentencePiece model files, or one file twice for a shared vocabulary.

        Raises:
            DataError: If a file is missing or is not a SentencePiece model.
        """
        try:
            return cls(src_path.read_bytes(), tgt_path.read_bytes(), form)
        except OSError as error:
            reason = f"cannot read a vocabulary: {error.strerror}"
            raise DataError(f"{error.filename}: {reason}") from None
        except DataError as error:
            path = src_path
            with suppress(DataError):
                SentencePieceModel(src_path.read_bytes())
                path = tgt_path  # since the other one is sound
            raise DataError(f"{path}: {error}") from None


class SentencePieceModel:
    """The pieces of one language: special ids `PAD_ID` to `EOS_ID`, then the rest as in the model.

    A special piece that the model lacks, such as padding by SentencePiece's default, has an id
    without a piece.

    Raises:
        DataError: If the bytes are not a SentencePiece model, or two special pieces are the same.
    """

    def __init__(self, model: bytes, form: NormalForm = "none") -> None:
        self.form = form
        self._processor = processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.load_from_serialized_proto(model)
            pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        except (RuntimeError, UnicodeDecodeError):
            raise DataError("not a SentencePiece model") from None
        special = [processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()]
        present = [i for i in special if i >= 0]
        if processor.unk_id() < 0 or len(set(present)) < len(present):
            raise DataError(
                f"the ids of pad, unk, bos and eos are {tuple(special)}: unk is needed, and no two"
                " may be the same"
            )
        rest = [i for i in range(len(pieces)) if i not in present]
        self._model_ids = special + rest
        """The model's id of each of our ids; -1 if there is no such piece."""
        self._ids = np.argsort(self._model_ids)[special.count(-1) :].tolist()
        """Our id of each of the model's ids: the inverse, without the -1, which sort first."""
        self._pieces = [pieces[max(i, 0)] for i in self._model_ids]
        for i, name in enumerate(("<pad>", "<unk>", "<s>", "</s>")):
            if special[i] < 0:
                while name in self._pieces:  # as the name of a user-defined symbol
                    name = f"<{name}>"
                self._pieces[i] = name
        self.size = len(self._pieces)
        self._has_our_ids = self._model_ids == list(range(self.size))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes texts into piece ids, without BOS or EOS."""
        folded = [self.fold(text) for text in texts]
        try:
            rows: list[list[int]] = self._processor.encode(folded, num_threads=-1)
        except TypeError:  # a lone surrogate, which a terminal can send, is not text
            replaced = [text.encode("utf-8", "replace").decode() for text in folded]
            rows = self._processor.encode(replaced, num_threads=-1)
        return rows if self._has_our_ids else [[self._ids[i] for i in row] for row in rows]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Decodes ids into lines: spaces replace line breaks and tabs of byte pieces."""
        if not self._has_our_ids:
            rows = [[id_ for i in row if (id_ := self._model_ids[i]) >= 0] for row in rows]
        # For a batch, starting threads takes longer than the work.
        texts = self._processor.decode(rows, num_threads=1) if rows else []
        return [text.replace("\n", " ").replace("\r", " ").replace("\t", " ") for text in texts]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Converts ids to pieces; the first piece of a word begins with `▁`."""
        return [self._pieces[i] for i in ids]

    def fold(self, text: str) -> str:
        """Normalises text as `data.normalize` says, and folds white space."""
        return " ".join(normalize_text(text, self.form).split())

    def normalize(self, text: str) -> str:
        """Normalises text as SentencePiece does before it looks for pieces."""
        return str(self._processor.normalize(text))

    @cached_property
    def kind(self) -> str:
        """The kind of the model, `bpe`, `unigram`, `word` or `char`, found by what it can do."""
        with suppress(RuntimeError):
            self._processor.nbest_encode("a", nbest_size=1)
            return "unigram"
        with suppress(RuntimeError):
            self._processor.encode("a", enable_sampling=True, alpha=1.0)
            return "bpe"
        return "word" if any(len(text) > 1 for text in self.table().texts) else "char"

    def unknown_ids(self) -> list[int]:
        """Lists the ids that stand for a character that is no piece: `UNK_ID`, and single bytes."""
        return [UNK_ID, *(i for i, piece in enumerate(self._pieces) if _BYTE.fullmatch(piece))]

    def table(self) -> "PieceTable":
        """Lists the pieces with their scores."""
        processor, ids = self._processor, [max(i, 0) for i in self._model_ids]
        scores = np.array(processor.get_score(ids), np.float64)
        # User-defined symbols have the score 0; the first BPE merge has -0.
        is_text = (scores != 0) | np.signbit(scores)
        for is_other in ("is_control", "is_unknown", "is_unused", "is_byte"):
            is_text &= ~np.array(getattr(processor, is_other)(ids))
        is_text[: EOS_ID + 1] = False
        texts = [piece if text else "" for piece, text in zip(self._pieces, is_text, strict=True)]
        return PieceTable(texts, np.where(is_text, scores, 0.0))


@dataclass(frozen=True)
class PieceTable:
    """The pieces of one language, with the data needed to draw segmentations.

    Attributes:
        texts: Text of each piece by id; empty for special, byte and unused pieces and for
            user-defined symbols.
        scores: SentencePiece's scores, float64, (V,).
    """

    texts: list[str]
    scores: npt.NDArray[np.float64]

    @property
    def ids(self) -> dict[str, int]:
        """Ids by the texts of pieces."""
        return {text: i for i, text in enumerate(self.texts) if text}


def train_vocabulary(
    word_counts: Sequence[Counter[str]], config: VocabConfig, form: NormalForm = "none"
) -> Vocabulary:
    """Learns a vocabulary from the words of the training text.

    Pieces never cross a space, so learning from counted words gives the same pieces as learning
    from the text, in a fraction of the memory. SentencePiece does not normalise them (`identity`
    rule). `bpe` and `unigram` fall back to bytes for rare characters, so no text is unknown; `word`
    and `char` know only the words or characters of the training text.

    Args:
        word_counts: Occurrences of each word: one counter for a shared vocabulary, or one for the
            source and one for the target language.
        config: Kind, size and symbols.
        form: How they are normalised, a value of `data.normalize`.

    Raises:
        DataError: If the text does not suit a vocabulary of this size; the message gives the
            largest or smallest possible size.
    """
    names = ["this text"] if len(word_counts) == 1 else ["the source text", "the target text"]
    sides = zip(word_counts, names, strict=True)
    models = [_train_model(counts, name, config) for counts, name in sides]
    return Vocabulary(models[0], models[-1], form)


def _train_model(word_counts: Counter[str], text_name: str, config: VocabConfig) -> bytes:
    writer, has_subwords = io.BytesIO(), config.kind in ("bpe", "unigram")
    words = heapq.nsmallest(config.max_words, word_counts.items(), key=_by_count)
    # The argument `minloglevel` would hide messages for the rest of the process. The level cannot
    # be read, so its default is restored.
    sentencepiece.set_min_log_level(_SPM_LOG_ERROR)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words),
            input_format="tsv",
            model_writer=writer,
            model_type=config.kind,
            vocab_size=config.size,
            # In bytes; longer words are left out. At most 65,535 characters are possible.
            max_sentence_length=65_000,
            character_coverage=0.9999 if has_subwords else 1.0,
            normalization_rule_name="identity",
            byte_fallback=has_subwords,
            user_defined_symbols=config.symbols,
            hard_vocab_limit=has_subwords,  # a text may have fewer words and characters
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
        )
    except RuntimeError as error:
        raise DataError(_explain(str(error), config, text_name)) from None
    finally:
        sentencepiece.set_min_log_level(_SPM_LOG_INFO)
    return writer.getvalue()


def _by_count(item: tuple[str, int]) -> tuple[int, int, str]:
    """Orders words by count, and those of equal count as if at random.

    The order of the corpus has no effect, and of a text without spaces, where nearly all words are
    different, those at the beginning of the alphabet are not preferred.
    """
    word, count = item
    return -count, zlib.crc32(word.encode("utf-8", "surrogatepass")), word


def _explain(message: str, config: VocabConfig, text_name: str) -> str:
    """Explains an error from SentencePiece in terms of configuration keys."""
    size = f"vocab.size = {config.size}"
    if largest := re.search(r"set it to a value <= (\d+)", message):
        return f"{size} is too large for {text_name}: set it to {largest[1]} or less"
    if smallest := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return f"{size} is too small for {text_name}: set it to {smallest[1]} or more"
    return f"{size}: SentencePiece cannot learn from {text_name}: {message.strip()}"
