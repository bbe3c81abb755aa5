"""Translation quality for equal time: ours, JoeyNMT and a tutorial's loop on one text.

    python benchmarks/quality.py CONFIG --set data.path=FOLDER --work DIR [--minutes 10]

With `--joeynmt DIR` JoeyNMT is measured too; its environment is made in DIR once. `--side NAME`
runs one side alone. Each side trains alone on all cores for the same minutes of wall time,
validations included; the pieces are made before and are the same. Then it translates the validation
set and, if that scores at least 1 BLEU, the test set, greedily and as its documentation recommends.
Every translation is detokenised and scored by sacreBLEU.

- ours: the configuration as it is; recommended is a beam of 4.
- joeynmt: version 2.3.0 with its published configuration for a small corpus (IWSLT14), a beam of 5
  and alpha 1; validated every 1,000 updates, its default.
- joeynmt-ours: the same with the sizes, batches and learning rate of our configuration.
- loop: `nn.Transformer` as PyTorch's translation tutorial trains it (512 wide, 3+3 layers, dropout
  0.1, Adam at 1e-4, 128 random sentences a batch, no label smoothing); greedy only. Such loops
  validate by the loss alone: the time in which BLEU is measured for the curve is not counted.

Each side's outcome goes to stderr as JSON when it is done.
"""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Annotated

import numpy as np
import sacrebleu
import torch
import typer
from load import Load, describe_share
from peers import PUBLISHED, Interval, JoeyNMT, Tutorial, same_recipe, tutorial

import transformer_mt
from transformer_mt.config.keys import Config
from transformer_mt.config.loading import load_config
from transformer_mt.text.batching import Indices
from transformer_mt.text.corpus import RawPairs, load_split
from transformer_mt.text.prepared import PreparedCorpus, prepare
from transformer_mt.text.vocabulary import EOS_ID, PAD_ID

VALIDATIONS = 5
"""Points of the loop's curve."""
LEARNED = 1.0
"""BLEU on the validation set below which a model does not translate the test set: it repeats words
up to the length limit, which is slow in the peers, since they decode without a cache."""
TUTORIAL = {
    "d_model": 512,
    "d_ff": 512,
    "n_heads": 8,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "dropout": 0.1,
}
BATCH = 128


@dataclass
class Task:
    """What all sides are given; changes are KEY=VALUE, and runs are kept in the folder `work`."""

    path: Path
    changes: list[str]
    config: Config
    prepared: PreparedCorpus
    valid: RawPairs
    test: RawPairs
    minutes: float
    work: Path


@dataclass
class Outcome:
    """What one side reached.

    Attributes:
        side: Its name.
        minutes: Wall time of its training, start and end of the program included.
        greedy: BLEU on the test set, greedy; None if the model has barely begun to learn.
        recommended: The same as its documentation recommends; None if that is greedy search.
        others_share: Share of the cores that other processes took.
        curve: Minutes of training and BLEU on the validation set.
    """

    side: str
    minutes: float
    greedy: float | None
    recommended: float | None
    others_share: float | None
    curve: list[tuple[float, float]] = field(default_factory=list)


Translate = Callable[[list[str]], list[str]]


@dataclass
class Trained:
    """A side after training: for how many minutes, its curve, and how it translates."""

    minutes: float
    curve: list[tuple[float, float]]
    greedy: Translate
    recommended: Translate | None


def report(progress: str) -> None:
    """Prints a line on stderr."""
    print(progress, file=sys.stderr, flush=True)


def report_point(side: str, minutes: float, score: float) -> None:
    """Prints a point of a curve."""
    report(f"{side}: {minutes:.1f} min, BLEU {score:.2f} on the validation set")


def train_ours(task: Task) -> Trained:
    """Trains ours by its command line."""
    run = task.work / "ours"
    limits = f"train.max_minutes={task.minutes}", "train.max_steps=1000000"
    changes = [*task.changes, *limits]
    words = ["train", task.path, "--run", run, *(w for c in changes for w in ("--set", c))]
    began = time.monotonic()
    command = [sys.executable, "-m", "transformer_mt", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    minutes = (time.monotonic() - began) / 60
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    valid = [line for line in map(json.loads, lines) if line["kind"] == "valid"]
    curve = [(line["seconds"] / 60, line.get("ema_bleu", line["bleu"])) for line in valid]
    model = transformer_mt.load(run)

    def translate(beam_size: int) -> Translate:
        return lambda lines: model.translate(lines, beam_size=beam_size)

    return Trained(minutes, curve, translate(1), translate(4))


def train_joeynmt(task: Task, peer: JoeyNMT, name: str, recipe: dict) -> Trained:
    """Trains JoeyNMT until it is interrupted, on which it saves its weights."""
    folder = task.work / name
    data = peer.write_text(task.config, task.prepared.vocab, folder)
    path = peer.write_config(data, recipe, Interval(logging=10, validation=1000), folder)
    # A shell's background job ignores SIGINT, and so would a program that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [peer.python, "-m", "joeynmt", "train", path, "--skip-test"]
    began, curve = time.monotonic(), []
    with subprocess.Popen(
        command, cwd=peer.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        timer = Timer(task.minutes * 60, process.send_signal, [signal.SIGINT])
        timer.start()
        for line in process.stderr:
            if found := re.search(r"Evaluation result \(greedy\): bleu: +([\d.]+)", line):
                curve.append(((time.monotonic() - began) / 60, float(found[1])))
                report_point(name, *curve[-1])
        timer.cancel()
    minutes = (time.monotonic() - began) / 60

    def translate(**search: object) -> Translate:
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["testing"] |= {"load_model": f"{folder}/model/latest.ckpt", **search}
        changed = folder / "test.yaml"

        def run(lines: list[str]) -> list[str]:
            changed.write_text(json.dumps(settings), encoding="utf-8")
            done = peer.run("translate", changed, input="\n".join(lines) + "\n")
            return done.stdout.splitlines()  # its option for a file fails

        return run

    return Trained(minutes, curve, translate(), translate(beam_size=5, beam_alpha=1.0))


def train_loop(task: Task) -> Trained:
    """Trains the tutorial's loop."""
    torch.manual_seed(1)
    sizes = task.config.model.model_copy(update=TUTORIAL)
    vocab, pairs = task.prepared.vocab, task.prepared.pairs
    model = Tutorial(task.config.model_copy(update={"model": sizes}), vocab.tgt.size)
    per_epoch = len(pairs) // BATCH

    def batch(i: int) -> Indices:
        order = np.random.default_rng(i // per_epoch).permutation(len(pairs))
        return order[i % per_epoch * BATCH :][:BATCH]

    def translate(lines: list[str]) -> list[str]:
        """Translates sentences of similar length together; the longest sets a batch's cost."""
        order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
        batches = (order[i : i + BATCH] for i in range(0, len(order), BATCH))
        texts = [text for rows in batches for text in part([lines[i] for i in rows])]
        return [text for _, text in sorted(zip(order, texts, strict=True))]

    def part(lines: list[str]) -> list[str]:
        rows = [torch.tensor([*ids, EOS_ID]) for ids in vocab.src.encode(lines)]
        src = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
        ids = model.eval().translate(src, src.size(1) + 5)
        return vocab.tgt.decode(
            [[i for i in row if i not in (PAD_ID, EOS_ID)] for row in ids.tolist()]
        )

    step, curve, steps = tutorial(model, pairs, batch), [], 0
    began, seconds = time.monotonic(), task.minutes * 60
    while (passed := time.monotonic() - began) < seconds:
        if passed >= (len(curve) + 1) * seconds / (VALIDATIONS + 1):
            score = sacrebleu.corpus_bleu(translate(task.valid.src), [task.valid.tgt]).score
            curve.append((passed / 60, score))
            report_point("loop", *curve[-1])
            model.train()
            began = time.monotonic() - passed  # the validation is not counted
        step(steps)
        steps += 1
    return Trained((time.monotonic() - began) / 60, curve, translate, None)


def measure(name: str, train: Callable[[], Trained], task: Task) -> Outcome:
    """Trains one side and scores both texts; the validation score is the end of its curve."""
    report(f"{name}:")
    load = Load()
    with load.watch():
        trained = train()

    def score(translate: Translate, text: RawPairs) -> float:
        return sacrebleu.corpus_bleu(translate(text.src), [text.tgt]).score

    valid = score(trained.greedy, task.valid)
    report_point(name, trained.minutes, valid)
    greedy = recommended = None
    if valid >= LEARNED:
        greedy = score(trained.greedy, task.test)
        if trained.recommended:
            recommended = score(trained.recommended, task.test)
    curve = [*trained.curve, (trained.minutes, valid)]
    outcome = Outcome(name, trained.minutes, greedy, recommended, load.share, curve)
    report(json.dumps(asdict(outcome)))
    return outcome


def table(outcomes: list[Outcome], name: str) -> None:
    """Prints what each side reached."""
    print(f"\n{name:16}{'minutes':>9}{'validation':>12}{'greedy':>9}{'recommended':>13}")
    for side in outcomes:
        scores = side.curve[-1][1], side.greedy, side.recommended
        valid, greedy, best = ("" if score is None else f"{score:.2f}" for score in scores)
        line = f"{side.side:16}{side.minutes:9.1f}{valid:>12}{greedy:>9}{best:>13}"
        print(f"{line}  {describe_share(side.others_share)}".rstrip())
    print(json.dumps({"benchmark": "quality", "test": name, "sides": list(map(asdict, outcomes))}))


def main(
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="Our configuration.")],
    work: Annotated[Path, typer.Option(help="A new folder for the runs.")],
    minutes: Annotated[float, typer.Option(help="Minutes of training of each side.")] = 10,
    joeynmt: Annotated[Path | None, typer.Option(help="JoeyNMT's environment.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE.")] = None,
    sides: Annotated[list[str] | None, typer.Option("--side", help="Only this side.")] = None,
) -> None:
    """Trains each side for the same time."""
    config = load_config(path, changes or [])
    if work.exists():
        raise typer.BadParameter(f"--work {work}: exists; name a new folder")
    work.mkdir(parents=True)
    valid, test = (
        load_split(config.data, split) for split in (config.data.valid, config.data.test)
    )
    task = Task(path, changes or [], config, prepare(config), valid, test, minutes, work.resolve())
    known = {"ours": lambda: train_ours(task), "loop": lambda: train_loop(task)}
    if joeynmt:
        peer = JoeyNMT(joeynmt)
        for name, recipe in (("joeynmt", PUBLISHED), ("joeynmt-ours", same_recipe(config))):
            known[name] = partial(train_joeynmt, task, peer, name, recipe)
    if unknown := set(sides or ()) - set(known):
        raise typer.BadParameter(f"--side {unknown.pop()}: choose from {', '.join(known)}")
    outcomes = [measure(name, known[name], task) for name in sides or known]
    table(outcomes, str(config.data.test))


if __name__ == "__main__":
    typer.run(main)
