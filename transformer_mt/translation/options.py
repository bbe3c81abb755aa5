"""Options for loading, searching and writing, and their defaults.

Imports no slow modules, since --help needs this one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from transformer_mt.errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
InputFormat = Literal["auto", "text", "tsv", "csv", "jsonl", "srt", "vtt"]
STRUCTURED_FORMATS = get_args(InputFormat)[2:]
"""Those that are also endings of names."""
OutputFormat = Literal["text", "jsonl"]
ExportFormat = Literal["ctranslate2", "transformers"]
Split = Literal["auto", "long", "never"]
Quantization = Literal["float32", "float16", "bfloat16", "int16", "int8"]

CPU_BATCH_TOKENS = 4096
"""Default of `SearchOptions.batch_tokens` for PyTorch on a CPU, where each thread decodes a batch;
on a GPU it depends on the memory."""
CTRANSLATE2_BATCH_TOKENS = {"cpu": 2048, "cuda": 16384}
"""The same for CTranslate2."""
DEFAULT_EXPORT_FORMAT: ExportFormat = "ctranslate2"

MAX_LENGTH_PENALTY = 10.0
"""The longer of two hypotheses wins at values far below this."""
MAX_TEMPERATURE = 100.0
"""All tokens are nearly equally probable at values far below this."""


@dataclass(frozen=True)
class Sampling:
    """How translations are drawn at random.

    Attributes:
        top_k: Tokens that can be drawn at a position, the most probable ones; None is all.
        temperature: Divisor of the logits: the lower, the more often probable tokens are drawn.
        seed: Decides, together with the number of a line, what is drawn for it.

    Raises:
        ConfigError: If one of them is outside its limits.
    """

    top_k: int | None = None
    temperature: float = 1.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top-k {self.top_k}: choose 1 or more")
        if not 0 < self.temperature <= MAX_TEMPERATURE:
            limits = f"more than 0 and at most {MAX_TEMPERATURE:g}"
            raise ConfigError(f"temperature {self.temperature:g}: choose {limits}")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed {self.seed}: choose 0 to {2**32 - 1}")


@dataclass(frozen=True)
class SearchOptions:
    """How translations are searched for.

    Attributes:
        beam_size: Hypotheses kept per sentence; 1 is greedy search.
        length_penalty: Exponent alpha of the length penalty of beam search.
        with_scores: Whether scores are needed; plain greedy search does not compute them.
        n_best: Translations per line that are needed; at most the beam size.
        batch_tokens: Padded source positions of a batch times beam size; None is the
            default for the device.
        sampling: How to draw one translation at random instead, with a beam size of 1; None is to
            search.

    Raises:
        ConfigError: If the length penalty is outside its limits.
    """

    beam_size: int = 1
    length_penalty: float = 1.0
    with_scores: bool = False
    n_best: int = 1
    batch_tokens: int | None = None
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.length_penalty <= MAX_LENGTH_PENALTY:
            limits = f"0 to {MAX_LENGTH_PENALTY:g}"
            raise ConfigError(f"length penalty {self.length_penalty:g}: choose {limits}")


@dataclass(frozen=True)
class LoadOptions:
    """How models are loaded for translation; `transformer_mt.load` explains each option."""

    device: Device = "auto"
    precision: Precision | None = None
    max_length: int | None = None
    raw: bool = False
    split: Split = "auto"


@dataclass(frozen=True)
class InputOptions:
    """Which texts of an input are translated, and where their translations go.

    Attributes:
        format: `auto` is that of the ending of the input's name, and text for others and stdin.
        column: Of a table, the column to translate: its name in the first row, or its number from 1
            if there is no such row; of JSON objects the key, whose dots lead into objects.
        output_column: The column, or key, of the translation; None is the same.
    """

    format: InputFormat = "auto"
    column: str | None = None
    output_column: str | None = None


@dataclass(frozen=True)
class OutputOptions:
    """What is written for each line.

    Attributes:
        with_scores: Whether text is preceded by the score and a tab; JSON always has a score.
        format: Lines of text, or one JSON object per translation.
    """

    with_scores: bool = False
    format: OutputFormat = "text"


@dataclass(frozen=True)
class FileOptions:
    """The files to translate and their outputs, as the user typed them.

    Without an input, or with `-`, stdin is translated; without an output, to stdout. Several
    inputs, none of them stdin, have a folder of outputs.

    Attributes:
        inputs: Files, or folders of files.
        files_from: A list of further files.
        output: The output of a single input.
        output_dir: The folder of outputs.
        overwrite: Whether to translate what is complete in it anew, and to replace files that this
            program did not write.
        summary: Where to write what became of the files.
    """

    inputs: Sequence[Path] = ()
    files_from: Path | None = None
    output: Path | None = None
    output_dir: Path | None = None
    overwrite: bool = False
    summary: Path | None = None


@dataclass(frozen=True)
class TranslateOptions:
    """Everything that the bytes of a translation depend on, except its text and its models."""

    load: LoadOptions
    search: SearchOptions
    output: OutputOptions = OutputOptions()
    input: InputOptions = InputOptions()


DEFAULT_SEARCH = SearchOptions()
