"""A checkpoint exported for CTranslate2, as this program finds it again.

    DIR/
        model.bin, config.json, ...   CTranslate2's own
        vocab.model                   or src.model and tgt.model
        export.json                   what it was made from, and how lines are split
        manifest.json                 SHA-256 of each file above and of itself
        README.md                     model card, which may be edited

Reading it imports no PyTorch.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import PositiveInt

from transformer_mt.checkpoints.layout import EXPORT, digest_of_files
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError, DataError
from transformer_mt.system.files import canonical_json, read_json, sha256
from transformer_mt.system.manifest import verify_manifest, write_manifest
from transformer_mt.text.splitting import SourceStatistics
from transformer_mt.text.vocabulary import SHARED, Vocabulary

FORMAT = 1
"""Format of `export.json`; see `checkpoint.FORMAT`."""


@dataclass(frozen=True)
class ExportRecord:
    """The content of `export.json`.

    Attributes:
        checkpoint: Name of the checkpoint that was exported.
        checkpoint_digest: Its digest.
        step: Its step.
        moving_average: Whether the weights are their moving average.
        raw: Whether they are not, although there is one.
        quantization: Type in which the weights are stored.
        positions: The longest source and the longest output, EOS included, that it can translate.
        config: The whole configuration.
        sources: What the sources of the training text look like.
        files: SHA-256 of the files that it was written with; `write_record` adds them.
        format: `FORMAT`.
    """

    checkpoint: str
    checkpoint_digest: str
    step: int
    moving_average: bool
    raw: bool
    quantization: str
    positions: PositiveInt
    config: Config
    sources: SourceStatistics | None
    files: dict[str, str]
    format: int = FORMAT


@dataclass(frozen=True)
class ExportedModel:
    """A verified directory; `digest` is of all files that its manifest lists."""

    path: Path
    digest: str
    vocab: Vocabulary
    record: ExportRecord
    is_exported: ClassVar[Literal[True]] = True

    @property
    def config(self) -> Config:
        """The whole configuration."""
        return self.record.config

    @property
    def step(self) -> int:
        """Step of the checkpoint that was exported."""
        return self.record.step

    @property
    def sources(self) -> SourceStatistics | None:
        """What the sources of the training text look like."""
        return self.record.sources

    def is_averaged(self, raw: bool) -> bool:
        """Returns whether the weights are a moving average; `raw` as in `Checkpoint`, is False."""
        return self.record.moving_average

    def is_raw(self, raw: bool) -> bool:
        """Returns whether they are not, although there is one."""
        return self.record.raw


def write_record(folder: Path, record: ExportRecord) -> None:
    """Completes a directory with CTranslate2's files and the vocabulary by ours and their digests.

    Raises:
        OSError: If they cannot be written.
    """
    files = {file.name: sha256(file) for file in folder.iterdir()}
    (folder / EXPORT).write_bytes(canonical_json(replace(record, files=files)))
    write_manifest(folder, {**files, EXPORT: sha256(folder / EXPORT)})


def load_exported(path: Path) -> ExportedModel:
    """Verifies a directory and reads what is not CTranslate2's in it.

    Raises:
        CheckpointError: Naming the file, and the key, that is missing or damaged.
    """
    files = verify_manifest(path)
    names = (SHARED, SHARED) if SHARED in files else ("src.model", "tgt.model")
    if missing := {EXPORT, *names} - files.keys():
        raise CheckpointError(f"{path}: its manifest does not list {min(missing)}")
    record: ExportRecord = read_json(path / EXPORT, ExportRecord, FORMAT)
    written = {**record.files, EXPORT: files[EXPORT]}
    if others := dict(files.items() ^ written.items()):
        raise CheckpointError(f"{path / min(others)}: not the file that `export` wrote")
    try:
        src_path, tgt_path = (path / name for name in names)
        vocab = Vocabulary.load_files(src_path, tgt_path, record.config.data.normalize)
    except DataError as error:
        raise CheckpointError(str(error)) from None
    return ExportedModel(path, digest_of_files(files), vocab, record)
