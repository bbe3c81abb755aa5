"""A commented configuration for two text files, with sizes that suit the text and the machine.

The sizes are those of the file in `configs/` for as much text, if there is one. With less text,
there are fewer pieces and more dropout.

Reference:
    Sennrich and Zhang 2019, Revisiting Low-Resource Neural Machine Translation: A Case Study.
"""

import logging
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from os.path import relpath
from pathlib import Path
from typing import NamedTuple

from transformer_mt.config.keys import DEFAULTS, DataConfig
from transformer_mt.config.loading import expand_path, parse_config
from transformer_mt.config.reference import format_value
from transformer_mt.config.splits import SplitFiles
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import ProgressBar
from transformer_mt.system.files import atomic_file
from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import COMPRESSION_SUFFIXES
from transformer_mt.text.cleaning import LineProblems
from transformer_mt.text.corpus import Pair, open_split
from transformer_mt.text.normalization import is_blank
from transformer_mt.text.tmx import is_tmx

logger = logging.getLogger(__name__)

_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
_LITTLE_TEXT = 20_000
"""With fewer pairs, any text is too little to train a translator."""
_CHARACTER_COVERAGE = 0.9999
"""Share of the text that the counted characters cover; the rest are encoded as bytes."""
_COVERED = 0.999
"""Share of the pairs that must not be longer than `data.max_length`."""
_MIN_PAIRS = 20
"""The share of the text that is held out is one pair in so many."""
_MAX_HELD_OUT = 1_000
_MAX_LENGTHS = (64, 128, 256, 512)
_BYTES_PER_PIECE = 3
"""A low estimate for long lines: mean lengths are 3.4 to 4.7 bytes for German and English with
2,000 to 16,000 pieces, and a character of Chinese has 3."""
_SPECIAL_PIECES = 260
"""256 bytes and four special pieces."""
_MANY_CHARACTERS = 1_000
"""Scripts with more characters, such as Chinese, need pieces in addition to one per character."""


def this_machine() -> tuple[str, bool]:
    """Describes what `train.device = "auto"` would use, and tells whether it is a GPU."""
    import torch  # takes seconds, and a mistake in the arguments of `init` should show at once

    from transformer_mt.system.device import choose_device, total_memory

    device, threads = choose_device("auto"), torch.get_num_threads()
    memory = f"{total_memory(device) / 1e9:.1f} GB of memory"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} with {memory}", True
    return f"{threads} CPU thread{'s' * (threads != 1)}, {memory}, no GPU", False


@dataclass(frozen=True)
class TextStatistics:
    """Counts of a text.

    Attributes:
        pairs: Number of pairs.
        empty: Pairs of which at least one side is empty.
        src_words, tgt_words: Mean number of words per line; words are separated by white space.
        longest_bytes: UTF-8 bytes that the longer side of `_COVERED` of the pairs does not exceed.
        distinct_words: Number of distinct words of both languages together.
        characters: Number of distinct characters of both languages, without the rarest, which make
            up 1 - `_CHARACTER_COVERAGE` of the text.
        src_problems, tgt_problems: Numbers of lines that may be wrong, as text; empty if none.
    """

    pairs: int
    empty: int
    src_words: float
    tgt_words: float
    longest_bytes: int
    distinct_words: int
    characters: int
    src_problems: str = ""
    tgt_problems: str = ""

    @property
    def usable(self) -> int:
        """Pairs with text on both sides."""
        return self.pairs - self.empty

    @property
    def held_out(self) -> int:
        """Pairs for validation, and as many for the test."""
        return min(_MAX_HELD_OUT, self.usable // _MIN_PAIRS)

    @property
    def train_pairs(self) -> int:
        """Pairs with text that are not held out."""
        return self.usable - 2 * self.held_out

    @property
    def max_length(self) -> int:
        """A limit in pieces for `data.max_length`."""
        pieces = self.longest_bytes / _BYTES_PER_PIECE
        return next((length for length in _MAX_LENGTHS if pieces <= length), _MAX_LENGTHS[-1])


def measure_text(pairs: Iterable[Pair]) -> TextStatistics:
    """Reads a text once; memory grows with its distinct words, not with its length."""
    words, characters = Counter[str](), Counter[str]()
    lengths, src_problems, tgt_problems = Counter[int](), LineProblems(), LineProblems()
    empty = src_words = tgt_words = 0
    for src, tgt in pairs:
        src_problems.add(src)
        tgt_problems.add(tgt)
        src_side, tgt_side = src.split(), tgt.split()
        empty += is_blank(src) or is_blank(tgt)
        src_words += len(src_side)
        tgt_words += len(tgt_side)
        words.update(src_side + tgt_side)
        lengths[max(len(src.encode()), len(tgt.encode()))] += 1
    for word, count in words.items():
        for character in word:
            characters[character] += count
    by_frequency = [count for _, count in characters.most_common()]
    total = lengths.total()
    return TextStatistics(
        pairs=total,
        empty=empty,
        src_words=src_words / max(total, 1),
        tgt_words=tgt_words / max(total, 1),
        longest_bytes=_first_covering(sorted(lengths.items()), _COVERED),
        distinct_words=len(words),
        characters=_first_covering(list(enumerate(by_frequency, 1)), _CHARACTER_COVERAGE),
        src_problems=str(src_problems),
        tgt_problems=str(tgt_problems),
    )


def _first_covering(counts: list[tuple[int, int]], share: float) -> int:
    """Returns the first value up to which the counts are at least a share of their sum."""
    left = share * sum(count for _, count in counts)
    for value, count in counts:
        left -= count
        if left <= 0:
            return value
    return 0


class Preset(NamedTuple):
    """Sizes for a minimum number of pairs, by the names of the configuration keys.

    `pairs` counts those held out too; with `gpu`, a CPU is too slow. There are as many `layers` in
    the encoder as in the decoder, and `save_every` steps between validations too.
    """

    pairs: int
    gpu: bool
    vocab_size: int
    d_model: int
    d_ff: int
    n_heads: int
    layers: int
    dropout: float
    batch_tokens: int
    warmup_steps: int
    lr_scale: float
    save_every: int
    minutes: int
    sampling: float = 0.0
    muon: bool = False
    bidirectional_epochs: int = 0


# fmt: off
_PRESETS = (
    #      pairs      gpu    vocab  d_model d_ff heads layers drop batch warm-up lr  save  minutes
    Preset(0,         False,  2000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60,
           sampling=0.05, muon=True),
    Preset(10_000,    False,  4000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60,
           sampling=0.05, muon=True),
    Preset(20_000,    False,  6000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60,
           sampling=0.05, muon=True, bidirectional_epochs=20),
    Preset(25_000,    False,  6000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60),
    Preset(25_000,    True,   6000, 256,    1024,  4,   3,    0.3,  2000,   500, 0.7,  500,   60,
           sampling=0.05, muon=True),
    Preset(100_000,   False,  8000, 256,    1024,  4,   4,    0.1,  2000,  1000, 1.5, 1000,   90,
           muon=True),
    Preset(300_000,   False,  8000, 256,    1024,  4,   4,    0.0,  2000,  1000, 1.5, 1000,   90,
           muon=True),
    Preset(100_000,   True,  10000, 512,    1024,  4,   6,    0.3,  4000,  4000, 0.7, 1000,  120),
    Preset(500_000,   True,  16000, 512,    2048,  8,   6,    0.1, 12000,  4000, 1.0, 2500,  480),
    Preset(2_000_000, True,  37000, 512,    2048,  8,   6,    0.1, 25000,  4000, 1.0, 2500, 1440),
)
# fmt: on
"""In order of text size: configs/multi30k.toml with three vocabulary sizes, for 20,000 pairs with
both directions at the start (benchmarks/LOG.md); from 25,000 pairs on, a CPU gets
it without Muon and sampling, which pay there only after some 10,000 steps, more than many CPUs take
in an hour. Then configs/news-cpu.toml, with dropout for fewer pairs than it has, since each of them
is seen more often. With a GPU: the usual sizes for IWSLT14, then the base model with the pieces and
steps of configs/wmt16-small.toml, then configs/wmt16-base.toml.
"""


def choose_sizes(text: TextStatistics, has_gpu: bool) -> Preset:
    """Chooses the sizes for a text, to train with or without a GPU.

    The size of the vocabulary is limited to what can be learned from the text: a piece for each
    character, and about one more per word. Half the words are enough: the training text has fewer
    than the whole text, and pieces learned from words that occur once are useless.
    """
    preset = [row for row in _PRESETS if row.pairs <= text.usable and row.gpu <= has_gpu][-1]
    usual = preset.vocab_size + (text.characters if text.characters > _MANY_CHARACTERS else 0)
    most = _SPECIAL_PIECES + text.characters + text.distinct_words // 2
    return preset._replace(vocab_size=min(usual, most))


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
    folder, *names = _place(src, tgt, path.parent)
    for typed in (folder, *names, path.name):
        if not typed.isprintable() or expand_path(typed) != typed:
            raise ConfigError(
                f"{typed!r} cannot be written in a configuration, where ~ and $NAME are expanded;"
                " rename it without ~, $ and control characters"
            )
    values = {"path": folder, "src_lang": src_lang, "tgt_lang": tgt_lang}
    data = parse_config({"data": values}, str(path)).data
    text = _measure(src, tgt)
    warnings = _warn(src, tgt, text)
    machine, has_gpu = this_machine()
    files = SplitFiles(src=names[0], tgt=names[1], skip_empty=text.empty > 0)
    content = _fill_in(data, files, _next_commands(path), text, warnings, machine, has_gpu)
    with atomic_file(path) as file:
        file.write(content.encode(errors="backslashreplace"))  # in comments only
    logger.info("wrote %s for %s pairs on %s", path, f"{text.pairs:,}", machine)
    return "\n".join(_next_commands(path)[:2])


def _language_of(path: Path, option: str) -> str:
    """Returns the language that a file's extension names."""
    plain = path.with_suffix("") if path.suffix in COMPRESSION_SUFFIXES else path
    language = plain.suffix.removeprefix(".")
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(f"{path}: its name does not end in a language such as .de; give {option}")
    return language


def _place(src: Path, tgt: Path, beside: Path) -> tuple[str, str, str]:
    """Returns `data.path` and the two files in it, relative to the configuration's folder."""
    paths = [path if path.is_absolute() else Path(relpath(path, beside)) for path in (src, tgt)]
    folder = Path()
    if paths[0].parent == paths[1].parent:
        folder, paths = paths[0].parent, [Path(path.name) for path in paths]
    return str(folder), str(paths[0]), str(paths[1])


def _measure(src: Path, tgt: Path) -> TextStatistics:
    """Measures the whole text, as training will read it."""
    files = SplitFiles(src=str(src), tgt=str(tgt))
    pairs = open_split(DataConfig(path="."), files).read()
    try:
        text = measure_text(ProgressBar("reading", "pairs", items=pairs))
    except MemoryError:
        raise DataError(
            f"{src} and {tgt}: out of memory for a line or for all different words; free memory,"
            " raise ulimit -v, or give init a part of the text"
        ) from None
    if text.usable < _MIN_PAIRS:
        raise DataError(
            f"{src} and {tgt}: {text.usable} pairs are too few; {_MIN_PAIRS} are needed to train"
            " and to hold some out, and tens of thousands for a translator"
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
        warnings.append(f"{text.empty:,} pairs have an empty side; skip_empty leaves them out")
    if text.usable < _LITTLE_TEXT:
        warnings.append(
            f"{text.usable:,} pairs are too few to train a translator, unless all sentences are"
            " alike"
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
    sizes, best = choose_sizes(text, has_gpu), choose_sizes(text, has_gpu=True)
    held_out, on_a_gpu = text.held_out, ""
    if (sizes.layers, sizes.d_model) != (best.layers, best.d_model):
        on_a_gpu = (
            f" On a GPU, init would choose {best.layers} + {best.layers} of width {best.d_model};"
            " a CPU is too slow for it."
        )
    slices = f"[:-{2 * held_out}]", f"[-{2 * held_out}:-{held_out}]", f"[-{held_out}:]"
    filled_in = template.format(
        text=text,
        machine=machine,
        sizes=sizes,
        warnings=warnings,
        on_a_gpu=on_a_gpu,
        commands=commands,
        muon=format_value(sizes.muon),
        max_steps=DEFAULTS["train.max_steps"],
        folder=format_value(data.path),
        src_lang=format_value(data.src_lang),
        tgt_lang=format_value(data.tgt_lang),
        splits=[files.model_copy(update={"slice": part}) for part in slices],
        covered=_COVERED,
        pieces=text.longest_bytes // _BYTES_PER_PIECE,
        pairs_per_step=sizes.batch_tokens / (max(text.src_words, text.tgt_words) + 1),
    )
    return "".join(f"{_wrap(line)}\n" for line in filled_in.splitlines())


def _wrap(line: str) -> str:
    """Wraps a comment, unless it is a command."""
    is_text = line.startswith("# ") and not line.startswith("#  ")
    return textwrap.fill(line, 79, subsequent_indent="# ") if is_text else line
