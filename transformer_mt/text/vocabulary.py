"""SentencePiece vocabularies: train, load, encode, decode.

Between `encode` and `decode` everything is ids.
"""

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from transformer_mt.config import VocabConfig
from transformer_mt.errors import DataError

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

SHARED = "vocab.model"
"""File of a vocabulary that both languages share."""

_LINE_BREAKS = str.maketrans("\n\r\t", "   ")


class Vocabulary:
    """Pieces of the source and of the target language, which may be the same ones.

    Args:
        src_model: Serialised SentencePiece model of the source.
        tgt_model: That of the target; the same bytes when the vocabulary is shared.

    Raises:
        DataError: If the bytes are no SentencePiece model, or one with other special ids.
    """

    def __init__(self, src_model: bytes, tgt_model: bytes) -> None:
        self.src_model, self.tgt_model = src_model, tgt_model
        self._src = _Pieces(src_model)
        self._tgt = self._src if self.shared else _Pieces(tgt_model)

    @property
    def shared(self) -> bool:
        """Whether both languages use one set of pieces."""
        return self.src_model == self.tgt_model

    @property
    def src_size(self) -> int:
        """Number of source pieces, special ones included."""
        return self._src.size

    @property
    def tgt_size(self) -> int:
        """Number of target pieces, special ones included."""
        return self._tgt.size

    def equals(self, other: "Vocabulary") -> bool:
        """Tells whether another vocabulary gives every piece the same id."""
        return (self.src_model, self.tgt_model) == (other.src_model, other.tgt_model)

    def encode_src(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes source texts into piece ids, without begin or end marks."""
        return self._src.encode(texts)

    def encode_tgt(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes target texts into piece ids, without begin or end marks."""
        return self._tgt.encode(texts)

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        """Spells source ids as pieces; a word begins with `▁`."""
        return self._src.spell(ids)

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        """Spells target ids as pieces."""
        return self._tgt.spell(ids)

    def decode_tgt(self, ids: Sequence[int]) -> str:
        """Joins target ids into one line of text.

        Byte pieces can spell a line break or a tab; each becomes a space, so that a
        hypothesis is always exactly one line.
        """
        return self._tgt.decode(ids).translate(_LINE_BREAKS)

    def save(self, directory: Path) -> list[Path]:
        """Writes the model files and returns their paths: one file when shared, else two."""
        models = {SHARED: self.src_model}
        if not self.shared:
            models = {"src.model": self.src_model, "tgt.model": self.tgt_model}
        for name, model in models.items():
            (directory / name).write_bytes(model)
        return [directory / name for name in models]

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Reads what `save` wrote, or a SentencePiece model file.

        Raises:
            DataError: If a file is missing or is no SentencePiece model.
        """
        shared = path if path.is_file() else path / SHARED
        paths = [shared] * 2 if shared.exists() else [path / "src.model", path / "tgt.model"]
        try:
            return cls(*(path.read_bytes() for path in paths))
        except OSError as error:
            raise DataError(f"{error.filename}: no vocabulary there: {error.strerror}") from None
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


def train_vocabulary(words: Sequence[Counter[str]], config: VocabConfig) -> Vocabulary:
    """Learns a vocabulary from the words of the training text.

    Pieces never cross a space, so words with their counts say all that the text would, in a
    fraction of the memory. They are taken as written (SentencePiece's `identity` rule). `bpe` and
    `unigram` spell characters too rare for a piece in bytes, so nothing is unknown; to `word` and
    `char` what training did not hold is.

    Args:
        words: Words with their counts: one counter for both languages to share, or one for each.
        config: Kind and size.

    Raises:
        DataError: If the text is too small for the size asked for; names the largest that fits.
    """
    models = [_train(some, config) for some in words]
    return Vocabulary(models[0], models[-1])


def _train(words: Counter[str], config: VocabConfig) -> bytes:
    sentencepiece.set_min_log_level(2)
    writer, subwords = io.BytesIO(), config.kind in ("bpe", "unigram")
    # Sorted by text within a count, so that the order of the corpus changes nothing.
    frequent = sorted(words.items(), key=lambda item: (-item[1], item[0]))[: config.max_words]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in frequent),
            input_format="tsv",
            model_writer=writer,
            model_type=config.kind,
            vocab_size=config.size,
            character_coverage=0.9999 if subwords else 1.0,
            normalization_rule_name="identity",
            byte_fallback=subwords,
            hard_vocab_limit=subwords,  # a text has only so many words and characters
            pad_id=PAD_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip()  # what is before names its source lines
        raise DataError(f"vocab.size = {config.size}: SentencePiece says: {reason}") from None
    return writer.getvalue()


def fold_whitespace(text: str) -> str:
    """Makes every run of white space, whatever its kind, one space, and trims the ends."""
    return " ".join(text.split())


class _Pieces:
    """One SentencePiece model whose special ids are ours."""

    def __init__(self, model: bytes) -> None:
        self._processor = processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.load_from_serialized_proto(model)
        except RuntimeError:
            raise DataError("this is not a SentencePiece model") from None
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        # SentencePiece's own default has no padding: ours is put before it.
        self._shift = int(ids == (-1, UNK_ID - 1, BOS_ID - 1, EOS_ID - 1))
        if not self._shift and ids != (PAD_ID, UNK_ID, BOS_ID, EOS_ID):
            raise DataError(
                f"pad, unk, bos and eos have the ids {ids}; 0, 1, 2, 3 or -1, 0, 1, 2 are needed"
            )
        self.size = int(processor.get_piece_size()) + self._shift

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        folded = [fold_whitespace(text) for text in texts]
        try:
            ids: list[list[int]] = self._processor.encode(folded, num_threads=-1) if folded else []
        except TypeError:  # half a surrogate pair, which a terminal can send, is no text
            whole = [text.encode("utf-8", "replace").decode() for text in folded]
            ids = self._processor.encode(whole, num_threads=-1)
        return [[i + 1 for i in row] for row in ids] if self._shift else ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._processor.decode([max(i - self._shift, 0) for i in ids]))

    def spell(self, ids: Sequence[int]) -> list[str]:
        return [str(self._processor.id_to_piece(max(i - self._shift, 0))) for i in ids]
