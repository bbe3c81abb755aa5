"""run.json: the text, the model and the environment of a run, as training found them."""

from dataclasses import dataclass, field
from pathlib import Path

from transformer_mt.checkpoints.layout import RUN_FILE
from transformer_mt.config.keys import Config
from transformer_mt.errors import CheckpointError
from transformer_mt.system.files import read_json, replace_file, signed_json
from transformer_mt.text.corpus_report import CorpusReport


@dataclass(frozen=True)
class SentenceLengths:
    """The mean length in pieces, EOS included, of the training sentences of each side."""

    mean: dict[str, float]


@dataclass(frozen=True)
class ValidationText:
    """The number of its pairs, and their digest."""

    pairs: int
    digest: str


@dataclass(frozen=True)
class InitialWeights:
    """The checkpoint of `train.init_from`: its step and digest, its name and that of its text."""

    step: int
    digest: str
    name: str
    text: str
    text_digest: str


@dataclass(frozen=True)
class VocabularySizes:
    """Pieces of both sides, and the kind of vocabulary, which may be that of `vocab.path`."""

    src: int
    tgt: int
    kind: str


@dataclass(frozen=True)
class RunDescription:
    """The content of run.json, written when a run is started, resumed, or complete.

    `environment` is that of the last start. Only an average has `averaged_steps`.
    """

    config: Config
    corpus: CorpusReport
    corpus_digest: str
    lengths: SentenceLengths
    validation: ValidationText
    init_from: InitialWeights | None
    vocabulary: VocabularySizes
    complete: bool
    parameters: int
    software: str
    environment: dict[str, str]
    averaged_steps: list[int] = field(default_factory=list)

    @property
    def digests(self) -> dict[str, str]:
        """What the run is made from, by the keys of `checkpoint.ORIGINS`."""
        return {
            "corpus_digest": self.corpus_digest,
            "valid_digest": self.validation.digest,
            "init_digest": self.init_from.digest if self.init_from else "",
        }


def write_description(directory: Path, description: RunDescription) -> None:
    """Writes run.json into a directory, with its own SHA-256.

    Raises:
        OSError: If it cannot be written.
    """
    replace_file(directory / RUN_FILE, signed_json(description))


def read_description(directory: Path) -> RunDescription | None:
    """Reads run.json in a directory; returns None if there is none.

    Raises:
        CheckpointError: If it is damaged, was edited, or is of another version.
    """
    path = directory / RUN_FILE
    if not path.exists():
        return None
    try:
        # Its own digest covers keys that only a newer version knows.
        description: RunDescription = read_json(path, RunDescription, unknown=None, signed=True)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; resume the run, which writes it again") from None
    return description
