"""A commented configuration for two text files, with sizes that suit the text and the machine.

The sizes are those of the file in `configs/` for as much text, if there is one. With less text,
there are fewer pieces and more dropout.

Reference:
    Sennrich and Zhang 2019, Revisiting Low-Resource Neural Machine Translation: A Case Study.
"""

import re
import shlex
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from os.path import realpath, relpath
from pathlib import Path
from typing import Any, NamedTuple

from transformer_mt.config.keys import Config, DataConfig, flat_values
from transformer_mt.config.loading import expand_path, format_value, parse_config
from transformer_mt.config.splits import SplitFiles
from transformer_mt.errors import ConfigError, DataError, OutputError
from transformer_mt.system.console import ProgressBar, logger
from transformer_mt.system.files import read_packaged, replace_file
from transformer_mt.system.outputs import check_output
from transformer_mt.system.streams import compression_suffix
from transformer_mt.text.cleaning import LineProblems
from transformer_mt.text.corpus import Pair, open_split
from transformer_mt.text.normalization import is_blank, normalize_text

_LANGUAGE = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?")
_LITTLE_TEXT = 20_000
"""With fewer pairs, any text is too little to train a translator."""
_CHARACTER_COVERAGE = 0.9999
"""Share of the text that the counted characters cover; the rest are encoded as bytes."""
_MIN_PAIRS = 20
"""The share of the text that is held out is one pair in so many."""
_MAX_HELD_OUT = 1_000
_COMMAND = "#     "
"""Begins a line of the template with a command."""
_KEPT = (
    "data.normalize",
    "data.max_length",
    "vocab.symbols",
    "vocab.sampling",
    "optim.muon",
    "valid.tokenize",
)
_WARMUP = 100
_SPECIAL_PIECES = 261
"""256 bytes, four special pieces, and the one that marks a word's beginning."""
_REVERSED_STEPS = 2700
"""The most steps with reversed pairs, a third of those that a fast CPU takes in an hour."""
_FAST_THREADS = {"bf16": 2, "fp32": 4}
"""Threads of a fast CPU; in an hour two took 8,500 steps in bf16, 3,500 to 4,600 in fp32."""
_MANY_CHARACTERS = 1_000
"""Scripts with more characters, such as Chinese, need pieces in addition to one per character."""
_CHARACTERS_PER_TOKEN = 2.3
"""As measured on German and English captions with 6,000 pieces and BPE-dropout."""


class Machine(NamedTuple):
    """What `train.device = "auto"` would use, as text, and whether it is a GPU.

    It is fast if it takes 6,000 steps of the small model in an hour.
    """

    description: str
    has_gpu: bool
    is_fast: bool


def this_machine() -> Machine:
    """Looks for a GPU; without one, the precision and the threads tell whether it is fast."""
    import torch  # takes seconds, and a mistake in the arguments of `init` should show at once

    from transformer_mt.system.device import choose_device, choose_precision

    device, threads = choose_device("auto"), torch.get_num_threads()
    if device.type == "cuda":
        return Machine(torch.cuda.get_device_name(device), True, True)
    is_fast = threads >= _FAST_THREADS[choose_precision("auto", device, recorded=None)]
    return Machine(f"{threads} CPU thread{'s' * (threads != 1)}, no GPU", False, is_fast)


@dataclass(frozen=True)
class TextStatistics:
    """Counts of a text.

    Attributes:
        pairs: Number of pairs.
        empty: Pairs of which at least one side is empty.
        words_per_line: Mean of both languages; words are separated by white space.
        characters_per_line: Likewise, without white space.
        distinct_words: Number of distinct words of both languages together.
        characters: Number of distinct characters of both languages, without the rarest, which make
            up 1 - `_CHARACTER_COVERAGE` of the text.
        src_problems, tgt_problems: Numbers of lines that may be wrong, as text; empty if none.
    """

    pairs: int
    empty: int
    words_per_line: float
    characters_per_line: float
    distinct_words: int
    characters: int
    src_problems: str = ""
    tgt_problems: str = ""

    @property
    def tokens_per_line(self) -> float:
        """Estimate for a vocabulary that is not yet known; words need not be separated."""
        return self.characters_per_line / _CHARACTERS_PER_TOKEN

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


def measure_text(pairs: Iterable[Pair]) -> TextStatistics:
    """Reads a text once; memory grows with its distinct words, not with its length."""
    words, characters = Counter[str](), Counter[str]()
    src_problems, tgt_problems, total, empty = LineProblems(), LineProblems(), 0, 0
    for src, tgt in pairs:
        total += 1
        src_problems.add(src)
        tgt_problems.add(tgt)
        empty += is_blank(src) or is_blank(tgt)
        words.update(normalize_text(f"{src} {tgt}", "nfc").split())
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return TextStatistics(
        pairs=total,
        empty=empty,
        words_per_line=words.total() / max(2 * total, 1),
        characters_per_line=characters.total() / max(2 * total, 1),
        distinct_words=len(words),
        characters=_count_covering(characters),
        src_problems=str(src_problems),
        tgt_problems=str(tgt_problems),
    )


def _count_covering(characters: Counter[str]) -> int:
    """Counts the most frequent characters that make up `_CHARACTER_COVERAGE` of the text."""
    covered = accumulate(count for _, count in characters.most_common())
    needed = _CHARACTER_COVERAGE * characters.total()
    return next((number for number, total in enumerate(covered, 1) if total >= needed), 0)


def choose_keys(text: TextStatistics, machine: Machine) -> dict[str, Any]:
    """Chooses the keys for a text, by `recipes.toml`, to train on a machine.

    The size of the vocabulary is limited to what can be learned from the text: a piece for each
    character, and about one more per word. Half the words are enough: the training text has fewer
    than the whole text, and pieces learned from words that occur once are useless.
    """
    keys, sizes = {}, tomllib.loads(read_packaged(__package__, "recipes.toml"))
    for recipe in sizes.pop("recipes"):
        if recipe["pairs"] <= text.usable and recipe["gpu"] <= machine.has_gpu:
            name = "keys" if machine.is_fast or "slow_keys" not in recipe else "slow_keys"
            keys = sizes[recipe["sizes"]] | recipe[name]
    if (epochs := keys.get("train.bidirectional_epochs")) and not machine.has_gpu:
        tokens = text.train_pairs * text.tokens_per_line
        most = int(_REVERSED_STEPS * keys["train.batch_tokens"] / tokens)
        keys["train.bidirectional_epochs"] = min(epochs, max(most, 1))
    if text.characters > _MANY_CHARACTERS:
        keys["vocab.size"] += text.characters
    most = _SPECIAL_PIECES + text.characters + text.distinct_words // 2
    return {**keys, "vocab.size": min(keys["vocab.size"], most)}


def _fine_tuning_keys(run: Path, config: Path, data: dict[str, str]) -> dict[str, Any]:
    """Returns what a run has fixed, and a low rate: at its peak, that of the run's last step.

    Warns if it translates other languages than those of `data`.
    """
    from transformer_mt.checkpoints.run_directory import find_checkpoint, load_newest
    from transformer_mt.training.optimizer import noam_rate

    checkpoint = find_checkpoint(run)
    old = checkpoint.config.data
    if (old.src_lang, old.tgt_lang) != (data["data.src_lang"], data["data.tgt_lang"]):
        texts = f"{data['data.src_lang']} to {data['data.tgt_lang']}"
        logger.warning(f"{run} translates {old.src_lang} to {old.tgt_lang}, this text is {texts}")
    vocab, values, optim = checkpoint.vocab, flat_values(checkpoint.config), checkpoint.config.optim
    keys = {k: v for k, v in values.items() if k in _KEPT or re.match("model.(?!dropout)", k)}
    # The width is the same, so it cancels out.
    # The best may be from long before, such as step 0 of a run that started from another.
    newest = load_newest(run)
    last = newest.step if newest else checkpoint.step
    final_rate = noam_rate(max(last, 1), 1, optim.warmup_steps, optim.lr_scale)
    return keys | {
        "vocab.kind": vocab.tgt.kind,
        "vocab.size": max(vocab.src.size, vocab.tgt.size),
        "vocab.shared": vocab.shared,
        "optim.warmup_steps": _WARMUP,
        "optim.lr_scale": float(f"{final_rate / noam_rate(_WARMUP, 1, _WARMUP):.2g}"),
        "train.bidirectional_epochs": 0,
        "train.join_pairs": False,
        "train.init_from": str(_from_folder(run, config.parent)),
        "valid.every": 200,
        "valid.old_text": True,
    }


def write_config(
    name: Path,
    src: Path,
    tgt: Path,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
    run: Path | None = None,
) -> str:
    """Measures two files of text and writes a configuration to train on them.

    Args:
        name: The file to write; `.toml` is added if it is missing.
        src: Text to translate from, one sentence per line.
        tgt: Its translation, line by line.
        src_lang: Language of `src`; None takes the ending of its name.
        tgt_lang: Language of `tgt`, likewise.
        run: A run or checkpoint to start from, instead of random weights.

    Returns:
        Two lines: the commands to run next.

    Raises:
        ConfigError: If a language is unknown, or a file name cannot be written in a configuration.
        DataError: If the text is missing, malformed, or too little.
        OutputError: If the configuration exists or cannot be written.
    """
    path = name if name.suffix == ".toml" else Path(f"{name}.toml")
    src_lang = src_lang or _language_of(src, "--src-lang")
    tgt_lang = tgt_lang or _language_of(tgt, "--tgt-lang")
    if src_lang == tgt_lang:
        raise ConfigError(f"{src} and {tgt} are both {src_lang}; give --src-lang and --tgt-lang")
    check_output(path)
    if not path.name.removesuffix(".toml").strip("."):
        raise OutputError(f"{path}: has no name; choose one for the configuration")
    if path.exists():
        raise OutputError(f"{path}: exists already; choose another name, or delete it first")
    folder, *names = _place(src, tgt, path, run or Path())
    data = {"data.path": folder, "data.src_lang": src_lang, "data.tgt_lang": tgt_lang}
    _parse(data, path)  # a wrong language shows before the text is read
    tuning = _fine_tuning_keys(run, path, data) if run else {}
    text, machine = _measure(src, tgt, src_lang, tgt_lang), this_machine()
    if realpath(src) == realpath(tgt):  # not before it is read: a .tmx has another message
        raise ConfigError(f"{src}: is --src and --tgt; name the translation as --tgt")
    keys = data | _hold_out(names, text) | choose_keys(text, machine) | tuning
    _warn(src, tgt, text, 0 if run else _LITTLE_TEXT)
    content = _fill_in(_parse(keys, path), path, text, machine)
    replace_file(path, content.encode(errors="backslashreplace"))  # in comments only
    logger.info("wrote %s for %s pairs on %s", path, f"{text.pairs:,}", machine.description)
    return "\n".join(re.findall(f"^{_COMMAND}(.*)", content, re.MULTILINE)[:2])


def _language_of(path: Path, option: str) -> str:
    """Returns the language that a file's extension names."""
    plain = Path(str(path).removesuffix(compression_suffix(path)))
    language = plain.suffix.removeprefix(".")
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(
            f"{path}: its name does not end in a language such as .de; give {option} if it is text,"
            " and see docs/text.md for a table or a translation memory"
        )
    return language


def _from_folder(path: Path, folder: Path) -> Path:
    """Writes a path relative to a folder, unless a symbolic link makes that another file."""
    relative = Path(relpath(path, folder))
    is_same = realpath(folder / relative) == realpath(path)
    return path if path.is_absolute() else relative if is_same else path.absolute()


def _place(src: Path, tgt: Path, config: Path, run: Path) -> tuple[str, str, str]:
    """Returns `data.path` and the two files in it, relative to the configuration's folder.

    Raises:
        ConfigError: If one of the names cannot be written in a configuration.
    """
    beside = config.parent
    paths = [_from_folder(path, beside) for path in (src, tgt)]
    folder = Path()
    if paths[0].parent == paths[1].parent:
        folder, paths = paths[0].parent, [Path(path.name) for path in paths]
    for written in map(str, (folder, *paths, config.name, run)):
        if not written.isprintable() or expand_path(written) != written:
            raise ConfigError(
                f"{written!r} cannot be written in a configuration, where ~ and $NAME are"
                " expanded; rename it without ~, $ and control characters"
            )
    return str(folder), str(paths[0]), str(paths[1])


def _hold_out(names: list[str], text: TextStatistics) -> dict[str, SplitFiles]:
    """Returns the keys of the splits: validation and test text are the last pairs."""
    src, tgt = names
    files = SplitFiles(src=src, tgt=tgt, skip_empty=text.empty > 0)
    test, valid = f"[-{text.held_out}:]", f"[-{2 * text.held_out}:-{text.held_out}]"
    slices = {"train": f"[:-{2 * text.held_out}]", "valid": valid, "test": test}
    return {f"data.{key}": files.model_copy(update={"slice": slices[key]}) for key in slices}


def _parse(keys: dict[str, Any], path: Path) -> Config:
    """Validates values by dotted key."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in keys.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    return parse_config(sections, str(path))


def _measure(src: Path, tgt: Path, src_lang: str, tgt_lang: str) -> TextStatistics:
    """Measures the whole text, as training will read it."""
    files = SplitFiles(src=str(src), tgt=str(tgt))
    data = DataConfig(path=".", src_lang=src_lang, tgt_lang=tgt_lang)
    pairs = open_split(data, files).read()
    text = measure_text(ProgressBar("reading", "pairs", items=pairs))
    if text.usable < _MIN_PAIRS:
        raise DataError(
            f"{src} and {tgt}: {text.usable} pairs are too few; {_MIN_PAIRS} are needed to train"
            " and to hold some out, and tens of thousands for a translator"
        )
    return text


def _warn(src: Path, tgt: Path, text: TextStatistics, enough: int) -> None:
    """Warns of what may be wrong with the text, such as fewer than `enough` pairs."""
    for path, problems in ((src, text.src_problems), (tgt, text.tgt_problems)):
        if problems:
            logger.warning("%s: some lines may be wrong: %s", path, problems)
    if text.empty:
        logger.warning(f"{text.empty:,} pairs have an empty side; skip_empty leaves them out")
    if text.usable < enough:
        logger.warning(
            f"{text.usable:,} pairs are too few to train a translator, unless all sentences are"
            " alike"
        )


def _fill_in(config: Config, path: Path, text: TextStatistics, machine: Machine) -> str:
    """Fills in the template."""
    name = "fine_tuning.toml" if config.train.init_from else "new_config.toml"
    filled_in = read_packaged(__package__, name).format(
        key={key: format_value(value) for key, value in flat_values(config).items()},
        text=text,
        machine=machine,
        config=shlex.quote(str(path)),
        run=shlex.quote(f"checkpoints/{path.stem}"),
        pairs_per_step=config.train.batch_tokens / text.tokens_per_line,
    )
    return "".join(f"{_wrap(line)}\n" for line in filled_in.splitlines())


def _wrap(line: str) -> str:
    """Wraps a comment, unless it is a command."""
    is_text = line.startswith("# ") and not line.startswith(_COMMAND)
    return textwrap.fill(line, 79, subsequent_indent="# ") if is_text else line
