"""A commented configuration for two text files, with sizes that suit the text and the machine."""

import logging
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from os.path import relpath
from pathlib import Path

from transformer_mt.config.keys import DataConfig, SplitFiles
from transformer_mt.config.loading import expand_path
from transformer_mt.config.reference import default_of, format_value
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import progress_bar
from transformer_mt.system.device import Machine, this_machine
from transformer_mt.system.files import atomic_file
from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import COMPRESSION_SUFFIXES
from transformer_mt.text.corpus import CorpusSplit, open_split
from transformer_mt.training.sizes import (
    BYTES_PER_PIECE,
    COVERED,
    LITTLE_TEXT,
    MIN_PAIRS,
    Sizes,
    TextStatistics,
    choose_sizes,
    measure_text,
)

logger = logging.getLogger(__name__)

_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
_WIDTH = 79
_PATIENCE = 10


@dataclass(frozen=True)
class _Side:
    """One of the two files, and its language."""

    path: Path
    language: str


@dataclass(frozen=True)
class _Setting:
    """One key of the new configuration; without a comment, it shares the previous key's."""

    key: str
    value: object
    comment: str = ""


def write_config(
    name: Path, src: Path, tgt: Path, src_lang: str | None = None, tgt_lang: str | None = None
) -> str:
    """Measures two files of text and writes a configuration to train on them.

    Args:
        name: The file to write; `.toml` is added if it is missing.
        src: Text to translate from, one sentence per line.
        tgt: Its translation, line by line.
        src_lang: Language of `src`; None takes the ending of its name.
        tgt_lang: Language of `tgt`, likewise.

    Returns:
        Two lines: the commands to run next.

    Raises:
        ConfigError: If a language is unknown, or a file name cannot be written in a configuration.
        DataError: If the text is missing, malformed, or too little.
        OutputError: If the configuration exists or cannot be written.
    """
    if not name.name:
        raise ConfigError(f"{name}: the new configuration needs a name, such as mytext")
    path = name if name.name.endswith(".toml") else name.with_name(f"{name.name}.toml")
    sides = (
        _Side(src, _language_of(src, src_lang, "--src-lang")),
        _Side(tgt, _language_of(tgt, tgt_lang, "--tgt-lang")),
    )
    if sides[0].language == sides[1].language:
        raise ConfigError(
            f"{src} and {tgt} are both {sides[0].language}; give --src-lang and --tgt-lang"
        )
    check_output(path)
    if path.exists():
        raise OutputError(f"{path}: exists already; choose another name, or delete it first")
    folder, files = _place(sides, path)
    text = measure_text(progress_bar("reading", "pairs", items=_open_text(sides).read()))
    pairs = text.pairs - text.empty
    if pairs < MIN_PAIRS:
        raise DataError(
            f"{src} and {tgt}: {pairs} pairs are too few; {MIN_PAIRS} are needed to train and"
            " to hold some out, and tens of thousands for a translator"
        )
    machine = this_machine()
    sizes = choose_sizes(text, machine)
    settings = chain(
        _data(sides, folder, files, sizes, text),
        _learning(sizes, text),
        _loop(sizes, text, machine),
    )
    with atomic_file(path) as file:
        file.write(_render(_header(path, sides, text, machine), settings).encode())
    logger.info("wrote %s for %s pairs on %s", path, f"{text.pairs:,}", machine)
    return "\n".join(_next_commands(path))


def _language_of(path: Path, given: str | None, option: str) -> str:
    """Returns the language given by an option or by a file's extension."""
    if given:
        return given
    plain = path.with_suffix("") if path.suffix in COMPRESSION_SUFFIXES else path
    language = plain.suffix.removeprefix(".")
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(f"{path}: its name does not end in a language such as .de; give {option}")
    return language


def _place(sides: tuple[_Side, _Side], config: Path) -> tuple[str, SplitFiles]:
    """Returns the paths of the text, the relative ones relative to the configuration's folder.

    Returns:
        `data.path`, and the two files in it.
    """
    paths = [
        side.path if side.path.is_absolute() else Path(relpath(side.path, config.parent))
        for side in sides
    ]
    folder = Path()
    if paths[0].parent == paths[1].parent:
        folder, paths = paths[0].parent, [Path(path.name) for path in paths]
    src, tgt = map(str, paths)
    for text in (str(folder), src, tgt, config.name, *(side.language for side in sides)):
        if not text.isprintable() or expand_path(text) != text:
            raise ConfigError(
                f"{text!r} cannot be written in a configuration, where ~ and $NAME are expanded;"
                " rename it without ~, $ and control characters"
            )
    return str(folder), SplitFiles(src=src, tgt=tgt)


def _open_text(sides: tuple[_Side, _Side]) -> CorpusSplit:
    """Opens the whole text, as training will read it."""
    src, tgt = (str(side.path.absolute()) for side in sides)
    return open_split(DataConfig(path="."), SplitFiles(src=src, tgt=tgt))


def _next_commands(path: Path) -> list[str]:
    command = f"transformer-mt train {shlex.quote(str(path))}"
    dry_run = f"{command} --dry-run"
    return [
        f"{dry_run}  # measures sizes, speed, memory and time",
        f"{command.ljust(len(dry_run))}  # trains; the same command again resumes",
    ]


def _header(
    path: Path, sides: tuple[_Side, _Side], text: TextStatistics, machine: Machine
) -> Iterator[str]:
    """Describes the text and the machine."""
    yield f"Text: {text.pairs:,} pairs, {text.distinct_words:,} different words in all."
    for side, words in zip(sides, (text.src_words, text.tgt_words), strict=True):
        yield (
            f"    {side.path.name}: {words.total:,} words, {words.mean:.1f} per line;"
            f" 99% of the lines have at most {words.quantile(0.99):,}"
        )
    if text.empty:
        yield f"    Training drops {text.empty:,} pairs of which a side is empty."
    if text.pairs < LITTLE_TEXT:
        yield "    This is too little for a translator, unless all sentences are of one kind."
    yield f"Machine: {machine}."
    yield ""
    yield "What to run next:"
    yield from (f"    {command}" for command in _next_commands(path))
    yield (
        f"    transformer-mt evaluate {shlex.quote(f'checkpoints/{path.stem}')}"
        "  # translates and scores the test text"
    )
    yield "A key that is not here has its default; `transformer-mt config` lists them all."


def _data(
    sides: tuple[_Side, _Side], folder: str, files: SplitFiles, sizes: Sizes, text: TextStatistics
) -> Iterator[_Setting]:
    """Sets the text files, and which pairs are held out."""
    yield _Setting("data.path", folder, "The folder of the two files; . is that of this file.")
    yield _Setting("data.src_lang", sides[0].language, "From which language to which.")
    yield _Setting("data.tgt_lang", sides[1].language)
    held_out = sizes.held_out
    why = (
        f"Training takes the first {sizes.train_pairs:,} pairs, validation the next {held_out:,},"
        f" the test the last {held_out:,}. If the text is sorted, or consists of several texts one"
        " after the other, shuffle the lines of both files alike first."
    )
    train, valid, test = f"[:-{2 * held_out}]", f"[-{2 * held_out}:-{held_out}]", f"[-{held_out}:]"
    yield _Setting("data.train", files.model_copy(update={"slice": train}), why)
    yield _Setting("data.valid", files.model_copy(update={"slice": valid}))
    yield _Setting("data.test", files.model_copy(update={"slice": test}))
    longest = text.longer_bytes.quantile(COVERED)
    yield _Setting(
        "data.max_length",
        sizes.max_length,
        f"{COVERED:.1%} of the pairs have at most {longest:,} bytes per side, about"
        f" {longest // BYTES_PER_PIECE:,} pieces. Training drops pairs that are longer than the"
        " limit; lines to be translated are split.",
    )


def _learning(sizes: Sizes, text: TextStatistics) -> Iterator[_Setting]:
    """Sets vocabulary, model and learning rate."""
    recipe = sizes.recipe
    yield _Setting("vocab.size", sizes.vocab_size, _why_vocab_size(sizes, text))
    yield _Setting("model.d_model", recipe.d_model, _why_model(sizes))
    yield _Setting("model.d_ff", recipe.d_ff)
    yield _Setting("model.n_heads", recipe.n_heads)
    yield _Setting("model.encoder_layers", recipe.layers)
    yield _Setting("model.decoder_layers", recipe.layers)
    yield _Setting(
        "model.dropout",
        recipe.dropout,
        f"{sizes.train_pairs:,} training pairs are few, and a high dropout limits overfitting"
        " (Sennrich and Zhang 2019).",
    )
    yield _Setting("model.norm", "pre", 'Trains more steadily than "post", the paper\'s.')
    yield _Setting(
        "optim.warmup_steps",
        recipe.warmup_steps,
        "The paper's 4,000 are part of 100,000 steps; this training has fewer.",
    )
    yield _Setting(
        "optim.lr_scale",
        recipe.lr_scale,
        "A factor on the Noam schedule, since gradients of small steps are noisy.",
    )
    yield _Setting("optim.max_grad_norm", 1.0, "Limits the harm of a single bad step.")


def _loop(sizes: Sizes, text: TextStatistics, machine: Machine) -> Iterator[_Setting]:
    """Sets steps and duration."""
    recipe = sizes.recipe
    words = max(text.src_words.mean, text.tgt_words.mean)
    yield _Setting(
        "train.batch_tokens",
        recipe.batch_tokens,
        f"At most {recipe.batch_tokens / (words + 1):,.0f} pairs of the mean length in a step."
        " With the paper's 25,000 tokens per step there would be too few steps.",
    )
    yield _Setting(
        "train.micro_batch_tokens",
        sizes.micro_batch_tokens,
        f"Positions of a micro-batch, padding included, for {machine}."
        f" {'' if machine.gpu else 'Threads compute several at once. '}It changes speed and"
        " memory, not what is learned; a dry run measures both.",
    )
    yield _Setting(
        "train.max_minutes",
        float(recipe.minutes),
        "To train longer than this, raise it and train again: the run continues.",
    )
    yield _Setting(
        "train.ema_decay",
        0.999,
        "A moving average of the weights over about 1,000 steps. It is validated and used to"
        " translate; while the learning rate is high, it is better than the weights of a step.",
    )
    yield _Setting("train.save_every", recipe.save_every, "Steps between checkpoints.")
    yield _Setting(
        "valid.every",
        recipe.save_every,
        f"Training also ends when {_PATIENCE} validations, so many steps apart, bring no better"
        " BLEU.",
    )
    yield _Setting("valid.patience", _PATIENCE)


def _why_vocab_size(sizes: Sizes, text: TextStatistics) -> str:
    if sizes.vocab_size < sizes.recipe.vocab_size:
        return f"{text.distinct_words:,} different words are too few for a larger vocabulary."
    if sizes.vocab_size > sizes.recipe.vocab_size:
        return f"{text.characters:,} different characters need a piece each, besides the others."
    return (
        f"{sizes.train_pairs:,} training pairs with {text.distinct_words:,} different words: the"
        " less text, the fewer pieces, so that each is seen often enough (Sennrich and Zhang 2019)."
    )


def _why_model(sizes: Sizes) -> str:
    recipe, best = sizes.recipe, sizes.best
    shape = f"{recipe.layers} + {recipe.layers} layers of width {recipe.d_model}"
    if recipe is not best:
        return (
            f"{shape}, because a CPU is slow: {sizes.train_pairs:,} training pairs are enough for"
            f" {best.layers} + {best.layers} of width {best.d_model}. With a GPU, run init there."
        )
    return (
        f"{shape}, feed-forward {recipe.d_ff}, for {sizes.train_pairs:,} training pairs; the"
        " paper's base model has 6 + 6 of width 512, feed-forward 2,048, for millions."
    )


def _render(header: Iterable[str], settings: Iterable[_Setting]) -> str:
    """Formats the keys that differ from their defaults as TOML, each group below its comment."""
    lines = [f"# {line}".rstrip() for line in header]
    section, comment = "", ""
    for setting in settings:
        name, key = setting.key.split(".")
        comment = setting.comment or comment
        if setting.value == default_of(setting.key):
            continue
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        lines += textwrap.wrap(comment, _WIDTH, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"{key} = {format_value(setting.value).removesuffix('.0')}")
        comment = ""
    return "\n".join(lines) + "\n"
