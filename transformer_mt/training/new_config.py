"""A commented configuration for two text files, with sizes that suit the text and the machine."""

import logging
import re
import shlex
import textwrap
from importlib import resources
from os.path import relpath
from pathlib import Path

from transformer_mt.config.keys import DataConfig, SplitFiles
from transformer_mt.config.loading import expand_path
from transformer_mt.config.reference import format_value
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import ProgressBar
from transformer_mt.system.files import atomic_file
from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import COMPRESSION_SUFFIXES
from transformer_mt.text.corpus import open_split
from transformer_mt.text.tmx import is_tmx
from transformer_mt.training.sizes import (
    BYTES_PER_PIECE,
    COVERED,
    MIN_PAIRS,
    TextStatistics,
    choose_sizes,
    measure_text,
    this_machine,
)

logger = logging.getLogger(__name__)

_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
_LITTLE_TEXT = 20_000
"""With fewer pairs, any text is too little to train a translator."""


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
    if is_tmx(src) or is_tmx(tgt):
        raise ConfigError(
            f"{src}, {tgt}: init reads two text files, not TMX; name a TMX file in data.train of a"
            " configuration, as in docs/text.md"
        )
    path = name if name.name.endswith(".toml") else name.with_name(f"{name.name}.toml")
    src_lang = src_lang or _language_of(src, "--src-lang")
    tgt_lang = tgt_lang or _language_of(tgt, "--tgt-lang")
    if src_lang == tgt_lang:
        raise ConfigError(f"{src} and {tgt} are both {src_lang}; give --src-lang and --tgt-lang")
    check_output(path)
    if path.exists():
        raise OutputError(f"{path}: exists already; choose another name, or delete it first")
    folder, files = _place(src, tgt, path.parent)
    for typed in (folder, files.src, files.tgt, path.name, src_lang, tgt_lang):
        if not typed.isprintable() or expand_path(typed) != typed:
            raise ConfigError(
                f"{typed!r} cannot be written in a configuration, where ~ and $NAME are expanded;"
                " rename it without ~, $ and control characters"
            )
    text = _measure(src, tgt)
    warnings = _warn(src, tgt, text)
    machine, has_gpu = this_machine()
    data = DataConfig(path=folder, src_lang=src_lang, tgt_lang=tgt_lang)
    content = _fill_in(data, files, _next_commands(path), text, warnings, machine, has_gpu)
    with atomic_file(path) as file:
        file.write(content.encode())
    logger.info("wrote %s for %s pairs on %s", path, f"{text.pairs:,}", machine)
    return "\n".join(_next_commands(path)[:2])


def _language_of(path: Path, option: str) -> str:
    """Returns the language that a file's extension names."""
    plain = path.with_suffix("") if path.suffix in COMPRESSION_SUFFIXES else path
    language = plain.suffix.removeprefix(".")
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(f"{path}: its name does not end in a language such as .de; give {option}")
    return language


def _place(src: Path, tgt: Path, beside: Path) -> tuple[str, SplitFiles]:
    """Returns `data.path` and the two files in it, relative to the configuration's folder."""
    paths = [path if path.is_absolute() else Path(relpath(path, beside)) for path in (src, tgt)]
    folder = Path()
    if paths[0].parent == paths[1].parent:
        folder, paths = paths[0].parent, [Path(path.name) for path in paths]
    return str(folder), SplitFiles(src=str(paths[0]), tgt=str(paths[1]))


def _measure(src: Path, tgt: Path) -> TextStatistics:
    """Measures the whole text, as training will read it."""
    files = SplitFiles(src=str(src.absolute()), tgt=str(tgt.absolute()))
    pairs = open_split(DataConfig(path="."), files).read()
    text = measure_text(ProgressBar("reading", "pairs", items=pairs))
    if text.usable < MIN_PAIRS:
        raise DataError(
            f"{src} and {tgt}: {text.usable} pairs are too few; {MIN_PAIRS} are needed to train and"
            " to hold some out, and tens of thousands for a translator"
        )
    return text


def _warn(src: Path, tgt: Path, text: TextStatistics) -> str:
    """Warns of what may be wrong with the text; returns the same as sentences."""
    warnings = [
        f"{path}: some lines may be wrong: {problems}"
        for path, problems in ((src, text.src_problems), (tgt, text.tgt_problems))
        if problems
    ]
    if text.empty:
        warnings.append(f"{text.empty:,} pairs have an empty side; training drops them")
    if text.usable < _LITTLE_TEXT:
        warnings.append(
            f"{text.usable:,} pairs are too little for a translator, unless all sentences are of"
            " one kind"
        )
    for warning in warnings:
        logger.warning("%s", warning)
    return "".join(f" {warning}." for warning in warnings)


def _next_commands(path: Path) -> list[str]:
    command = f"transformer-mt train {shlex.quote(str(path))}"
    dry_run = f"{command} --dry-run"
    run = shlex.quote(f"checkpoints/{path.stem}")
    return [
        f"{dry_run}  # measures sizes, speed, memory and time",
        f"{command.ljust(len(dry_run))}  # trains; the same command again resumes",
        f"transformer-mt evaluate {run}  # translates and scores the test text",
    ]


def _fill_in(
    data: DataConfig,
    files: SplitFiles,
    commands: list[str],
    text: TextStatistics,
    warnings: str,
    machine: str,
    has_gpu: bool,
) -> str:
    """Fills in the template, `new_config.toml`."""
    template = resources.files(__package__).joinpath("new_config.toml").read_text(encoding="utf-8")
    sizes = choose_sizes(text, has_gpu)
    preset, held_out = sizes.preset, sizes.held_out
    best = choose_sizes(text, has_gpu=True).preset
    on_a_gpu = ""
    if preset != best:
        on_a_gpu = (
            f" On a GPU, init would choose {best.layers} + {best.layers} of width {best.d_model};"
            " a CPU is too slow for it."
        )
    slices = f"[:-{2 * held_out}]", f"[-{2 * held_out}:-{held_out}]", f"[-{held_out}:]"
    filled_in = template.format(
        text=text,
        machine=machine,
        sizes=sizes,
        preset=preset,
        warnings=warnings,
        on_a_gpu=on_a_gpu,
        commands=commands,
        folder=format_value(data.path),
        src_lang=format_value(data.src_lang),
        tgt_lang=format_value(data.tgt_lang),
        splits=[files.model_copy(update={"slice": part}) for part in slices],
        covered=COVERED,
        pieces=text.longest_bytes // BYTES_PER_PIECE,
        pairs_per_step=preset.batch_tokens / (max(text.src_words, text.tgt_words) + 1),
    )
    return "".join(f"{_wrap(line)}\n" for line in filled_in.splitlines())


def _wrap(line: str) -> str:
    """Wraps a comment, unless it is a command."""
    is_text = line.startswith("# ") and not line.startswith("#  ")
    return textwrap.fill(line, 79, subsequent_indent="# ") if is_text else line
