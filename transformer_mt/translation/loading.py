"""A translator from checkpoints, one model or an ensemble; a translation from it or from a file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.errors import CheckpointError, ConfigError, DeviceError
from transformer_mt.model.cpu_kernels import pack_weights
from transformer_mt.model.ensemble import Ensemble
from transformer_mt.system.console import progress_bar
from transformer_mt.system.device import DTYPES, choose_device, supports
from transformer_mt.text.corpus import read_lines
from transformer_mt.translation.translator import GREEDY, SearchOptions, Translator


def load_translator(
    paths: Sequence[Path],
    search: SearchOptions = GREEDY,
    device: str = "auto",
    precision: str = "fp32",
    max_length: int | None = None,
    raw: bool = False,
) -> tuple[list[Checkpoint], Translator]:
    """Reads runs or checkpoints and puts them to work.

    Args:
        paths: A run (its best checkpoint) or a checkpoint each; several decode as an ensemble.
        search: How to look for translations.
        device: `auto`, `cpu` or `cuda`.
        precision: `fp32`, `bf16` or `fp16`; the weights are rounded to it.
        max_length: Source pieces after which a line is split; None is the longest in training.
        raw: Takes the weights themselves although there is a moving average of them.

    Raises:
        CheckpointError: If one is missing or damaged, or the vocabularies differ.
        ConfigError: If the precision is none.
        DeviceError: If the device is absent or does not compute in that precision.
    """
    target = choose_device(device)
    if precision not in DTYPES:
        raise ConfigError(f"--precision {precision}: write {', '.join(DTYPES)}")
    if not supports(precision, target):
        raise DeviceError(f"--precision {precision}: this {target.type} does not compute in it")
    checkpoints = [find_checkpoint(path) for path in paths]
    first = checkpoints[0]
    for other in checkpoints[1:]:
        if not other.vocab.has_same_ids(first.vocab):
            raise CheckpointError(
                f"{other.path}: its vocabulary is not that of {first.path};"
                " an ensemble needs one (train with vocab.path)"
            )
    models = [
        checkpoint.build_model(raw).to(target, DTYPES[precision]) for checkpoint in checkpoints
    ]
    model = models[0] if len(models) == 1 else Ensemble(models).eval()
    pack_weights(model)  # once, not for each chunk of lines
    longest = max_length or min(checkpoint.config.data.max_length for checkpoint in checkpoints)
    return checkpoints, Translator(model, first.vocab, longest, search)


@dataclass(frozen=True)
class Output:
    """What a system made of a test set.

    Attributes:
        lines: One a source line.
        name: The checkpoints or the file it comes from.
        seconds: Time spent translating; 0 for a file.
    """

    lines: list[str]
    name: str
    seconds: float


def obtain(
    paths: Sequence[Path],
    sources: Sequence[str],
    load: Callable[[Sequence[Path]], tuple[list[Checkpoint], Translator]],
) -> Output:
    """Reads a translation from a file, or makes one.

    Args:
        paths: One file with a translation, or runs and checkpoints.
        sources: What is to be translated.
        load: Makes a translator of runs and checkpoints.

    Raises:
        TransformerMTError: If a path is neither.
    """
    if len(paths) == 1 and paths[0].is_file():
        return Output(list(read_lines(paths[0])), str(paths[0]), 0.0)
    checkpoints, translator = load(paths)
    name = " and ".join(str(checkpoint.path) for checkpoint in checkpoints)
    began = time.monotonic()
    with progress_bar("translating", "lines", len(sources)) as bar:
        lines = list(translator.translate(sources, bar.update))
    return Output(lines, name, time.monotonic() - began)
