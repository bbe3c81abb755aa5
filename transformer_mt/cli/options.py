"""Arguments and options that several commands share or that are checked together."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from transformer_mt.errors import ConfigError
from transformer_mt.translation.options import (
    Device,
    Precision,
    Quantization,
    Sampling,
    SearchOptions,
)


def argument(metavar: str, help: str) -> Any:
    """Declares an argument of a command."""
    return typer.Argument(metavar=metavar, help=help, rich_help_panel="Arguments")


def option(
    metavar: str, help: str, *names: str, group: str | None = None, min: float | None = None
) -> Any:
    """Declares an option with a value; without names, it has that of its parameter."""
    return typer.Option(*names, metavar=metavar, help=help, min=min, rich_help_panel=group)


def flag(help: str, *names: str, group: str | None = None) -> Any:
    """Declares an option without a value."""
    return typer.Option(*names, help=help, rich_help_panel=group)


FILES, SEARCH = "Input and output", "Model and search"
file_option = partial(option, group=FILES)
search_option = partial(option, group=SEARCH)

ConfigArgument = Annotated[
    Path, argument("CONFIG", "A TOML file, such as configs/wmt16-base.toml.")
]
RunArgument = Annotated[
    Path, argument("RUN_OR_CHECKPOINT", "A run (its best checkpoint) or one checkpoint.")
]
SetOption = Annotated[
    list[str] | None,
    option("KEY=VALUE", "Override a key of `transformer-mt config`; may be repeated.", "--set"),
]
BeamOption = Annotated[int, search_option("N", "Beam size; 1 is greedy search.", min=1)]
PenaltyOption = Annotated[
    float | None,
    search_option(
        "ALPHA",
        "Exponent of the length penalty of beam search, 0 to 10. Default:"
        f" {SearchOptions.length_penalty:g}.",
        min=0.0,
    ),
]
SampleOption = Annotated[
    bool, flag("Sample translations from the model's distribution.", "--sample", group=SEARCH)
]
TopKOption = Annotated[
    int | None,
    search_option("K", "With --sample: draw from the K most probable pieces. Default: all.", min=1),
]
TemperatureOption = Annotated[
    float | None,
    search_option(
        "T",
        "With --sample: divisor of the logits, above 0 and at most 100; below 1, probable pieces"
        f" are drawn more often. Default: {Sampling.temperature:g}.",
    ),
]
SeedOption = Annotated[
    int | None,
    search_option(
        "N",
        "With --sample: what is drawn for a line depends on this and on the line's number."
        f" Default: {Sampling.seed}.",
        min=0,
    ),
]
EnsembleOption = Annotated[
    bool, flag("Decode with the named runs as one ensemble.", "--ensemble", group=SEARCH)
]
PrecisionOption = Annotated[
    Precision | None,
    search_option(
        "[fp32|bf16|fp16]",
        "Precision of weights and arithmetic. Default: fp32; an exported model has its own.",
    ),
]
BatchOption = Annotated[
    int | None,
    search_option(
        "N",
        "Largest batch: source pieces, padding included, times the beam size. A CPU decodes a"
        " batch per thread, with PyTorch at most eight. Default: 4096 on a CPU, by memory on a"
        " GPU; with CTranslate2 2048 and 16384.",
        min=1,
    ),
]
LengthOption = Annotated[
    int | None,
    search_option("N", "Pieces after which text is split. Default: from the training text.", min=1),
]
DeviceOption = Annotated[Device, search_option("[auto|cpu|cuda]", "Where to translate.")]
QuantizationOption = Annotated[
    Quantization | None,
    option(
        "[float32|float16|bfloat16|int16|int8]",
        "Type in which CTranslate2 stores the weights. Default: float32.",
    ),
]
RawOption = Annotated[
    bool,
    flag("Use the trained weights, not their moving average.", "--raw", group=SEARCH),
]
OverwriteOption = Annotated[
    bool,
    flag(
        "Replace existing files in --output-dir, or text that is scored.",
        "--overwrite",
        group=FILES,
    ),
]
QuietOption = Annotated[bool, flag("Only warnings and errors on stderr.", "-q", "--quiet")]


def choose_length_penalty(
    length_penalty: float | None, beam_size: int, scores: bool = False
) -> float:
    """Gives the length penalty or its default; refuses one that would change nothing."""
    if length_penalty is None:
        return SearchOptions.length_penalty
    if beam_size == 1 and not scores:
        raise ConfigError("--length-penalty has no effect on greedy search: add --beam-size 4")
    return length_penalty


def choose_sampling(
    sample: bool,
    top_k: int | None,
    temperature: float | None,
    seed: int | None,
    hypotheses: int,
) -> Sampling | None:
    """Gives the options of sampling, None without --sample; refuses those that have no effect."""
    for name, value in (("--top-k", top_k), ("--temperature", temperature), ("--seed", seed)):
        if value is not None and not sample:
            raise ConfigError(f"{name} has an effect only on sampling: add --sample")
    if sample and hypotheses > 1:
        raise ConfigError(
            "--sample draws one translation per line, without a beam: leave out --beam-size and"
            " --n-best"
        )
    if not sample:
        return None
    return Sampling(
        top_k,
        Sampling.temperature if temperature is None else temperature,
        Sampling.seed if seed is None else seed,
    )
