"""The texts that this user has trained on here; of files that a model names, only these are read.

A stranger's configuration may name any file, and `evaluate` stores beside the model what it reads.

    ~/.local/state/transformer-mt/texts     or below $XDG_STATE_HOME; a line for what a run named
"""

import errno
import json
import os
from pathlib import Path

from transformer_mt.config.keys import DEFAULTS, DataConfig
from transformer_mt.config.loading import expand_path
from transformer_mt.config.splits import Splits
from transformer_mt.errors import DataError
from transformer_mt.system.console import logger


def remember_text(data: DataConfig) -> None:
    """Records the paths of a configuration that is trained with; logs a warning if that fails."""
    path = _record()
    try:
        if not _is_known(data):
            _require_absolute(path)
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(_line(data))
    except OSError as error:
        reason = f"cannot be written: {error.strerror}"
        logger.warning("%s: %s; `evaluate` will ask for the test text", path, reason)


def readable_corpus(data: DataConfig, split: Splits, has_option: bool = False) -> DataConfig:
    """Returns the corpus of a model to read a split from.

    If it is not known, it must be of the hub, and its folders are the default ones. `has_option`
    tells whether the user can name the text instead.

    Raises:
        DataError: If it names files that this user has not trained with here.
    """
    if _is_known(data):
        return data
    name = expand_path(str(split))
    if Path(data.path).exists() or "/" in name:
        own = Path(data.path, name).absolute()
        option = f"--split {own} (or --valid of tune)"
        option = option if isinstance(split, str) else "--src and --ref"
        option = f"name the text by {option}, or " if has_option else ""
        raise DataError(
            f"data.path = {data.path}, split {split}: not read, since a model names it, and no"
            f" `train` of yours has read it on this machine; {option}repeat the command that"
            " trained the model, which resumes it if it is unfinished"
        )
    folders = {key: DEFAULTS[f"data.{key}"] for key in ("cache_dir", "prepared_dir")}
    return data.model_copy(update=folders)


def _is_known(data: DataConfig) -> bool:
    path = _record()
    try:
        _require_absolute(path)
        return _line(data).encode() in path.read_bytes().splitlines(keepends=True)
    except OSError:  # there is none, or it is in the home of another user
        return False


def _record() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "transformer-mt", "texts")


def _require_absolute(path: Path) -> None:
    """Raises OSError if it is not, as without a home: a stranger may have made a folder `~`."""
    if not path.is_absolute():
        raise OSError(errno.ENOENT, "not an absolute path; set HOME or XDG_STATE_HOME")


def _line(data: DataConfig) -> str:
    """Returns what a configuration names on this machine, in ASCII."""
    splits = [str(split) for split in (data.train, data.valid, data.test)]
    return json.dumps([data.path, *splits, data.cache_dir, data.prepared_dir]) + "\n"
