"""The figures of metrics.jsonl for TensorBoard, in RUN/tensorboard: one folder per kind of line."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from transformer_mt.checkpoints.checkpoint import Progress
from transformer_mt.errors import ConfigError


class Board:
    """Writes figures under their names in metrics.jsonl.

    Args:
        run_dir: The run.
        progress: Where it stands; TensorBoard drops what an interrupted process wrote after that.
    """

    def __init__(self, run_dir: Path, progress: Progress) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A checkpoint saved on a signal comes before the validation of its step.
        last = {"train": progress.step, "valid": progress.valid_step}
        self._writers = {
            kind: SummaryWriter(run_dir / "tensorboard" / kind, purge_step=step + 1)
            for kind, step in last.items()
        }

    def add(self, kind: str, step: int, values: Mapping[str, float | None]) -> None:
        """Adds the figures of a line; non-finite values are left out."""
        for name, value in values.items():
            if value is not None:
                self._writers[kind].add_scalar(name, value, step)
        self._writers[kind].flush()

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            writer.close()


def require_tensorboard() -> None:
    """Refuses train.tensorboard if the package is not installed.

    Raises:
        ConfigError: Saying what to install.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "train.tensorboard needs TensorBoard: pip install 'transformer-mt[tensorboard]', or"
            " set train.tensorboard = false"
        )
