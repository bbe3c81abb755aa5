"""Test sets: a split of the corpus, files, or one of sacreBLEU's own sets."""

import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import chain
from pathlib import Path

from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from transformer_mt.config.changes import without_folder
from transformer_mt.config.keys import DataConfig
from transformer_mt.config.splits import Splits
from transformer_mt.errors import DataError, OutputError
from transformer_mt.system.console import logger
from transformer_mt.system.outputs import Output, resolve_inputs
from transformer_mt.system.streams import require_input
from transformer_mt.text.corpus import (
    digest_strings,
    load_split,
    open_split,
    read_lines,
    read_source_lines,
    warn_of_direction,
)
from transformer_mt.text.data_files import data_suffix, read_data_file
from transformer_mt.text.languages import language_code
from transformer_mt.text.trained_here import readable_corpus

_TOKENISED = re.compile(r" \.$|@@(?: |$)|\u2581")
"""What detokenised text lacks: a full stop apart, a word or a space as pieces have it."""


@dataclass(frozen=True)
class EvaluationSet:
    """The raw text that translations are scored against, with one or more references."""

    name: str
    """The split or files that it was read from, without folders and with a digest of the text, or
    sacreBLEU's set with its languages."""
    src: list[str] | None
    references: list[list[str]]

    def __len__(self) -> int:
        return len(self.references[0])


def load_test_set(
    data: DataConfig,
    split: str | None = None,
    src: Path | None = None,
    refs: Sequence[Path] = (),
    test_set: str | None = None,
    save: Output | None = None,
    columns: Sequence[str | None] = (None, None),
) -> EvaluationSet:
    """Loads raw sources and references, by default those of the configured test split.

    Args:
        data: The corpus and its languages.
        split: A split of the corpus; train, valid and test are the configured ones. One with an
            absolute path is of the corpus in that folder.
        src: A file of source text, instead of a split.
        refs: Files of reference translations, of `src` if it is given.
        test_set: The name of one of sacreBLEU's sets, such as wmt16, instead of a split or files.
        save: Where a translation of a split will be saved.
        columns: Those of `src` and of each of `refs`, by name or number, if they are tables.

    Raises:
        OutputError: If this is a file of the split.
        DataError: If not one test set is given, or it cannot be read or its files differ in length.
    """
    if (src and not refs) or (columns[0] and not src) or (columns[1] and not refs):
        raise DataError("--src needs --ref, and --src-column and --ref-column need their files")
    if sum((split is not None, bool(refs), test_set is not None)) > 1:
        raise DataError("choose one of --split, --test-set, and --ref with or without --src")
    if test_set is not None:
        return _load_sacrebleu(test_set, data.src_lang, data.tgt_lang)
    if refs:
        if src:
            warn_of_direction(data, "--src, --ref", src.name, refs[0].name)
        return _load_files(src, refs, columns)
    return _load_split(data, split or "test", save)


def _load_split(data: DataConfig, split: str, save: Output | None) -> EvaluationSet:
    """Loads a split of the corpus, which a translation that is saved must not replace."""
    configured: dict[str, Splits] = {"train": data.train, "valid": data.valid, "test": data.test}
    chosen = configured.get(split, split)
    if Path(split).is_absolute():
        data = data.model_copy(update={"path": str(Path(split).parent)})
        chosen = split = Path(split).name
    else:
        data = readable_corpus(data, chosen, has_option=True)
    files = (file for part in open_split(data, chosen).parts for file in part.files)
    if save and not save.overwrites and str(save.target) in resolve_inputs(files):
        raise OutputError(f"{save.name}: is text that is scored; to replace it, add --overwrite")
    pairs = load_split(data, chosen)
    # Other text, or the other direction, may have the same name.
    name = f"{without_folder(data.path)}, split {split} ({pairs.digest()[:8]})"
    _warn_of_tokenised(f"{name}, {data.src_lang}", pairs.src)
    _warn_of_tokenised(f"{name}, {data.tgt_lang}", pairs.tgt)
    return EvaluationSet(name, pairs.src, [pairs.tgt])


def _load_files(
    src: Path | None, refs: Sequence[Path], columns: Sequence[str | None]
) -> EvaluationSet:
    """Reads line-aligned files, each once, since one may be a pipe."""
    paths = [*([src] if src else []), *refs]
    texts = [_read_side(src, "--src-column", columns[0])] if src else []
    texts += [_read_side(ref, "--ref-column", columns[1]) for ref in refs]
    for path, text in zip(paths, texts, strict=True):
        check_text(path, text)
        if len(text) != len(texts[0]):
            raise DataError(
                f"{paths[0]} has {len(texts[0]):,} lines and {path} has {len(text):,}:"
                " they must be line-aligned"
            )
    if not texts[0]:
        raise DataError(f"{paths[0]}: contains no lines")
    digest = digest_strings(chain.from_iterable(texts))
    sources = texts.pop(0) if src else None
    # Other files may have the same names, and other sources the same references.
    name = f"{', '.join(ref.name for ref in refs)} ({digest[:8]})"
    return EvaluationSet(name.encode(errors="replace").decode(), sources, texts)


def _read_side(path: Path, option: str, column: str | None) -> list[str]:
    """Reads a text, or a column of a table with each of its texts on one line."""
    require_input(path)
    suffix = data_suffix(path.name)
    if not column and not suffix:
        read = read_source_lines if option == "--src-column" else read_lines
        return [line.strip() for line in read(path)]
    if not column:
        raise DataError(f"{path}: is a table; add {option} and the name or number of its column")
    is_number = suffix in (".csv", ".tsv") and re.fullmatch(r"\d{1,9}", column)
    name = int(column) if is_number else column
    rows = read_data_file(path, read_source_lines(path), {option: name})
    return [re.sub(r"[\r\n]+", " ", text) for [text] in rows]


def check_text(path: Path, lines: Sequence[str]) -> None:
    """Refuses a table that is named as a text; warns of text that is tokenised or cut into pieces.

    Raises:
        DataError: If each line has a tab.
    """
    if lines and all("\t" in line for line in lines):
        raise DataError(f"{path}: each line has a tab; name a file of one column (see cut -f)")
    _warn_of_tokenised(str(path), lines)


def _warn_of_tokenised(name: str, lines: Sequence[str]) -> None:
    tokenised = [line for line in lines if _TOKENISED.search(line)]
    if tokenised and len(tokenised) >= min(100, len(lines) / 10):
        logger.warning(
            f"{name}: {len(tokenised):,} of {len(lines):,} lines look tokenised or cut into pieces,"
            f" such as {tokenised[0][:60]!r}; scores are for text that is neither"
        )


def _load_sacrebleu(name: str, src_lang: str, tgt_lang: str) -> EvaluationSet:
    if name not in DATASETS:
        raise DataError(f"--test-set {name}: sacreBLEU has no such set; see sacrebleu --list")
    if not src_lang or not tgt_lang:
        raise DataError(f"--test-set {name} without a run needs --src-lang and --tgt-lang")
    dataset, pair = DATASETS[name], "-".join(map(language_code, (src_lang, tgt_lang)))
    if pair not in dataset.langpairs:
        raise DataError(f"--test-set {name}: has {', '.join(dataset.langpairs)}, not {pair}")
    try:
        sources = list(dataset.source(pair))  # type: ignore[no-untyped-call]
        references = list(dataset.references(pair))  # type: ignore[no-untyped-call]
    except (OSError, HTTPException, tarfile.TarError, SystemExit) as error:
        raise DataError(
            f"--test-set {name}: cannot download it ({error}); without network, copy its folder"
            f" into {SACREBLEU_DIR}, or use --src and --ref"
        ) from None
    texts = [[line.strip() for line in text] for text in zip(*references, strict=True)]
    if any(len(text) != len(sources) for text in texts):
        raise DataError(
            f"--test-set {name}: its files in {SACREBLEU_DIR} have different numbers of lines;"
            " delete its folder there, so that sacreBLEU makes them again"
        )
    return EvaluationSet(f"{name} ({pair})", sources, texts)
