"""A SentencePiece vocabulary as `tokenizer.json`, the format of Hugging Face's tokenizers.

The ids of a text are those of `SentencePieceModel.encode` with EOS added. Only BPE is written: the
ids of a unigram vocabulary would differ where float32, in which SentencePiece adds, decides.
"""

import re
import sys
from typing import Any

from transformer_mt.errors import ConfigError
from transformer_mt.text.normalization import INVISIBLE, LIGATURES
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


def tokenizer_json(model: SentencePieceModel, symbols: list[str]) -> dict[str, Any]:
    """Describes a vocabulary as tokenizers reads it.

    Args:
        model: The vocabulary.
        symbols: Its user-defined symbols. A text that is only one of them is encoded without the
            space mark before it.

    Raises:
        ConfigError: If tokenizers would give other ids: the vocabulary is not one of BPE, bytes are
            missing, or the text is normalised in another way than `train_vocabulary` does.
    """
    names, table = model.pieces(range(model.size)), model.table()
    _check(model, names, table, symbols)
    special = [PAD_ID, UNK_ID, BOS_ID, EOS_ID]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            *(_added_token(i, names[i]) for i in special),
            *(_added_token(names.index(symbol), symbol, is_symbol=True) for symbol in symbols),
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model, symbols)},
        "pre_tokenizer": None,
        "post_processor": _append(names[EOS_ID]),
        "decoder": {"type": "Sequence", "decoders": _decoders()},
        "model": _bpe(names, table),
    }


def _check(
    model: SentencePieceModel, names: list[str], table: PieceTable, symbols: list[str]
) -> None:
    if model.kind != "bpe":
        raise ConfigError(
            f"vocab.kind = {model.kind}: only bpe gives the same ids in transformers; export for"
            " CTranslate2"
        )
    other = [name for name, text in zip(names, table.texts, strict=True) if not text]
    if sorted(set(other[EOS_ID + 1 :]) - set(symbols)) != _BYTES:
        raise ConfigError(
            "the vocabulary has no byte pieces, or has unused ones or user-defined ones that are"
            " not in vocab.symbols: transformers would give other ids"
        )
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    characters = re.sub(rf"[\ud800-\udfff\s{WORD_MARK}]", "", everything)
    if model.normalize(f"{characters} {WORD_MARK}") != WORD_MARK + characters:
        raise ConfigError(
            "the vocabulary normalises text: only SentencePiece's identity rule gives the same ids"
            " in transformers"
        )


def _added_token(token_id: int, content: str, is_symbol: bool = False) -> dict[str, Any]:
    """Describes a special piece, or a symbol, which is looked for in normalised text."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    flags |= {"normalized": is_symbol, "special": not is_symbol}
    return {"id": token_id, "content": content, **flags}


def _hex(text: str) -> str:
    """Writes characters as a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _normalizers(model: SentencePieceModel, symbols: list[str]) -> list[dict[str, Any]]:
    """Normalises text and folds white space as `fold`, then marks words as SentencePiece.

    The names of added tokens are normalised too, and must stay as they are in the text.
    """
    names = "|".join(_hex(symbol) for symbol in symbols)
    begin = rf"\A(?=.)(?!(?:{names})\z)" if symbols else r"\A(?=.)"
    # Python has more characters of white space than \s.
    spaces = _hex("".join(filter(str.isspace, map(chr, range(sys.maxunicode)))))
    replaced = {f"[{_hex(INVISIBLE)}]": "", **LIGATURES}
    nfc = [*(_replace(*item) for item in replaced.items()), {"type": "NFC"}]
    return [
        *(nfc if model.form == "nfc" else []),
        _replace(f"[{spaces}]+", " "),
        _replace(r"\A +| +\z", ""),
        _replace(begin, WORD_MARK),
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
