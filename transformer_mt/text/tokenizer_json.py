"""A SentencePiece vocabulary as `tokenizer.json`, the format of Hugging Face's tokenizers.

The ids of a text are those of `SentencePieceModel.encode` with EOS added. Only sums of scores that
differ by less than float32 can tell may choose other pieces, in unigram vocabularies: SentencePiece
adds in float32, tokenizers in float64.
"""

import sys
from typing import Any

from transformer_mt.errors import ConfigError
from transformer_mt.text.vocabulary import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    WORD_MARK,
    PieceTable,
    SentencePieceModel,
)

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer_json(model: SentencePieceModel) -> dict[str, Any]:
    """Describes a vocabulary as tokenizers reads it.

    Raises:
        ConfigError: If tokenizers would give other ids: the pieces are words or characters, bytes
            are missing, or the text is normalised in another way than `train_vocabulary` does.
    """
    names, table = model.pieces(range(model.size)), model.table()
    _check(model, names, table)
    describe = _bpe if table.kind == "bpe" else _unigram
    special = [PAD_ID, UNK_ID, BOS_ID, EOS_ID]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, names[i]) for i in special],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers()},
        "pre_tokenizer": _isolate_unknown(names, table),
        "post_processor": _append(names[EOS_ID]),
        "decoder": {"type": "Sequence", "decoders": _decoders()},
        "model": describe(names, table),
    }


def _check(model: SentencePieceModel, names: list[str], table: PieceTable) -> None:
    if table.kind is None:
        raise ConfigError("a vocabulary of words or characters: transformers reads bpe and unigram")
    other = [name for name, text in zip(names, table.texts, strict=True) if not text]
    if sorted(other[EOS_ID + 1 :]) != _BYTES:
        raise ConfigError(
            "the vocabulary has no byte pieces, or has unused or user-defined ones: transformers"
            " would give other ids"
        )
    characters = "".join(filter(_is_visible, map(chr, range(sys.maxunicode + 1))))
    if model.normalize(f"{characters} {WORD_MARK}") != WORD_MARK + characters:
        raise ConfigError(
            "the vocabulary normalises text: only SentencePiece's identity rule gives the same ids"
            " in transformers"
        )


def _is_visible(character: str) -> bool:
    is_surrogate = "\ud800" <= character <= "\udfff"
    return not (is_surrogate or character.isspace() or character == WORD_MARK)


def _added_token(token_id: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _normalizers() -> list[dict[str, Any]]:
    """Folds white space as `fold_whitespace`, then marks words as SentencePiece."""
    # Python has more characters of white space than \s.
    spaces = "".join(f"\\x{{{code:x}}}" for code in range(sys.maxunicode) if chr(code).isspace())
    return [
        _replace(f"[{spaces}]+", " "),
        _replace(r"\A +| +\z", ""),
        {"type": "Prepend", "prepend": WORD_MARK},  # to text that is not empty
        _replace(" ", WORD_MARK),
        _replace(rf"{WORD_MARK}+\z", ""),  # SentencePiece trims marks in the text itself
    ]


def _decoders() -> list[dict[str, Any]]:
    """Joins pieces as `SentencePieceModel.decode`."""
    return [
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        _replace(rf"\A{WORD_MARK}+", ""),
        _replace(rf"[{WORD_MARK}\n\r\t]", " "),
    ]


def _append(eos: str) -> dict[str, Any]:
    """Adds EOS to a text, and to each text of a pair."""
    end = {"SpecialToken": {"id": eos, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, end],
        "pair": [first, end, second, end],
        "special_tokens": {eos: {"id": eos, "ids": [EOS_ID], "tokens": [eos]}},
    }


def _bpe(names: list[str], table: PieceTable) -> dict[str, Any]:
    """Lists merges in SentencePiece's order: by the score of their result."""
    texts = table.ids
    merges = []
    for text in sorted(texts, key=lambda text: -table.scores[texts[text]]):
        halves = [(text[:i], text[i:]) for i in range(1, len(text))]
        merges += [pair for pair in halves if pair[0] in texts and pair[1] in texts]
    return {
        "type": "BPE",
        "unk_token": names[UNK_ID],
        "fuse_unk": False,
        "byte_fallback": True,
        "vocab": {name: i for i, name in enumerate(names)},
        "merges": merges,
    }


def _unigram(names: list[str], table: PieceTable) -> dict[str, Any]:
    """Lists pieces with scores, so low for those that are not text that text never becomes them."""
    never = 100 * float(table.scores.min())
    pairs = zip(table.texts, table.scores.tolist(), strict=True)
    scores = [score if text else never for text, score in pairs]
    vocab = list(zip(names, scores, strict=True))
    return {"type": "Unigram", "unk_id": UNK_ID, "byte_fallback": True, "vocab": vocab}


def _isolate_unknown(names: list[str], table: PieceTable) -> dict[str, Any] | None:
    """Separates from their neighbours the characters of `</s>`, `<0x41>` ... that no piece has.

    Otherwise the name of a piece that is not text, all of whose alternatives have such a
    character, would become that piece.
    """
    pieces = zip(names, table.texts, strict=True)
    characters = {character for name, text in pieces if not text for character in name}
    if table.kind == "bpe" or not (unknown := characters - set("".join(table.texts))):
        return None
    codes = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(unknown))
    return {
        "type": "Split",
        "pattern": {"Regex": f"[{codes}]"},
        "behavior": "Isolated",
        "invert": False,
    }
