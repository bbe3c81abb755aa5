"""Scores and translations of a checkpoint, stored beside it for reports and model cards.

    RUN/evaluations/NAME.json               of the run's checkpoints
    RUN/averaged-5/evaluations/NAME.json    of averaged weights

There is one file per test set, checkpoint, search setting and tokenizer of BLEU, also for
validation; a newer evaluation replaces it. Nothing is written inside a step-* directory.
"""

import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from transformer_mt.checkpoints.layout import METRICS, STEP_NAME, checkpoint_digest
from transformer_mt.errors import CheckpointError
from transformer_mt.system.console import logger
from transformer_mt.system.files import canonical_json, json_digest, locked, read_json, replace_file

FOLDER = "evaluations"
VALIDATION = "validation"
"""Name of a run's validation text as a test set."""


@dataclass(frozen=True)
class SearchSetting:
    """The settings that a translation depends on besides the weights.

    `length_penalty` is None for greedy search; `max_length` is the option, None for the usual
    splitting of lines; `raw` means the weights themselves, although there is a moving average.
    """

    beam_size: int = 1
    length_penalty: float | None = None
    precision: str = "fp32"
    max_length: int | None = None
    raw: bool = False

    def __str__(self) -> str:
        search = f"beam {self.beam_size}" if self.beam_size > 1 else "greedy"
        penalty = "" if self.length_penalty is None else f", alpha {self.length_penalty:g}"
        raw = ", raw weights" if self.raw else ""
        split = f", lines split after {self.max_length} pieces" if self.max_length else ""
        return f"{search}{penalty}, {self.precision}{raw}{split}"


@dataclass(frozen=True)
class Score:
    """The value of one metric, `bleu`, `chrf`, `chrf++` or `ter`, for one set of hypotheses.

    It is from 0 to 100; TER is an error rate and may be larger. `confidence` is half the width of
    its 95% confidence interval, None if that was not computed. `text` is the line that sacreBLEU
    prints, which is not stored.
    """

    name: str
    value: float
    signature: str
    confidence: float | None = None
    text: Annotated[str, Field(exclude=True)] = ""

    @property
    def title(self) -> str:
        """The name as written in papers, with `lc` for BLEU of lower-cased text."""
        if self.name == "bleu" and "|case:lc|" in self.signature:
            return "BLEU lc"
        return {"bleu": "BLEU", "ter": "TER"}.get(self.name, self.name.replace("chrf", "chrF2"))

    @property
    def full_title(self) -> str:
        """The title, with the tokenizer unless it is that of most papers."""
        return self.title + (f" ({self.tokenizer})" if self.tokenizer not in ("", "13a") else "")

    def __str__(self) -> str:
        interval = "" if self.confidence is None else f" ± {self.confidence:.2f}"
        return f"{self.value:.2f}{interval}"

    @property
    def tokenizer(self) -> str:
        """The tokenizer by its name in the signature, such as 13a; empty for chrF2."""
        match = re.search(r"\btok:([^|]+)", self.signature)
        return match[1] if match else ""


@dataclass(frozen=True)
class EvaluationRecord:
    """One evaluation of the checkpoint directory of this name, which has this digest.

    Each reference has one line per source line. `seconds`, spent translating, is 0 if it was not
    measured; `time` is in seconds since 1970.
    """

    test_set: str
    checkpoint: str
    digest: str
    search: SearchSetting
    scores: Annotated[list[Score], Field(min_length=1)]
    sources: Annotated[list[str], Field(min_length=1)]
    references: Annotated[list[list[str]], Field(min_length=1)]
    hypotheses: list[str]
    seconds: float = 0.0
    time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if any(len(lines) != len(self.sources) for lines in (self.hypotheses, *self.references)):
            raise ValueError("numbers of lines differ")

    @property
    def file_name(self) -> str:
        """The name of its file, the same for a newer evaluation of the same kind.

        Validation is repeated in training, and only the newest record of it is kept.
        """
        checkpoint = "" if self.test_set == VALIDATION else self.checkpoint
        kind = [self.test_set, checkpoint, asdict(self.search)]
        kind += [s.tokenizer for s in self.scores if s.name == "bleu" and s.tokenizer != "13a"]
        kind += [s.title for s in self.scores if s.name == "bleu" and s.title != "BLEU"]
        readable = re.sub(r"[^\w.]+", "-", self.test_set, flags=re.ASCII).strip("-.")[-40:]
        return f"{readable.strip('-.')}-{json_digest(kind)[:8]}.json"


def record_folder(checkpoint: Path) -> Path | None:
    """Returns the folder for evaluations of a checkpoint; None if it is a step outside its run."""
    path = checkpoint.resolve()
    if not STEP_NAME.fullmatch(path.name):
        return path / FOLDER
    return path.parent / FOLDER if (path.parent / METRICS).exists() else None


def write_evaluation(checkpoint: Path, record: EvaluationRecord) -> None:
    """Writes an evaluation of the checkpoint in a directory; logs a warning if that fails.

    Other scores that were recorded of the same translation are kept.
    """
    folder = record_folder(checkpoint)
    if folder is None:
        return
    try:
        folder.mkdir(exist_ok=True)
        # Another process may record other scores of the same translation.
        with locked(folder / ".lock", lambda process: None, remove=True):
            with suppress(CheckpointError):
                before = read_json(folder / record.file_name, EvaluationRecord)
                texts = record.sources, record.references, record.hypotheses
                if (before.sources, before.references, before.hypotheses) == texts:
                    new = {score.title for score in record.scores}
                    others = [score for score in before.scores if score.title not in new]
                    record = replace(record, scores=[*record.scores, *others])
            replace_file(folder / record.file_name, canonical_json(record))
    except OSError as error:
        logger.warning("%s: the scores are not recorded: %s", folder, error.strerror or error)


def read_evaluations(directory: Path) -> list[EvaluationRecord]:
    """Reads the evaluations of a run and of the averages in it, or of one average, oldest first.

    Skips, with a warning, damaged ones and those of a checkpoint that was saved again since.
    """
    records: list[EvaluationRecord] = []
    own, below = (directory.glob(f"{inside}{FOLDER}/[!.]*.json") for inside in ("", "*/"))
    # An average or an export has no metrics, another run has.
    below = (path for path in below if not (path.parent.parent / METRICS).exists())
    for path in sorted((*own, *below)):
        try:
            record = read_json(path, EvaluationRecord)
            if _is_replaced(record, path.parent.parent):
                raise CheckpointError(
                    f"{path}: {record.checkpoint} was saved again since; evaluate it again"
                )
            records.append(record)
        except CheckpointError as error:
            logger.warning("%s; left out", error)
    return sorted(records, key=lambda record: record.time)


def delete_evaluations(run_dir: Path) -> None:
    """Deletes the evaluations of a run's checkpoints; other files are kept."""
    for path in run_dir.glob(f"{FOLDER}/[!.]*.json"):
        with suppress(CheckpointError):
            read_json(path, EvaluationRecord)
            path.unlink()


def _is_replaced(record: EvaluationRecord, directory: Path) -> bool:
    """Returns whether the checkpoint that was scored was saved again, maybe with other weights."""
    is_step = STEP_NAME.fullmatch(record.checkpoint)
    checkpoint = directory / record.checkpoint if is_step else directory
    try:
        return checkpoint_digest(checkpoint) != record.digest
    except CheckpointError:  # deleted or damaged: nothing has replaced it
        return False
