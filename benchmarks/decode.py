"""Translation speed of one model: ours, CTranslate2's and a plain loop's, side by side.

    python benchmarks/decode.py RUN test.de test.en [--quick] [--neighbours 1] [--device cuda]

The same weights and sentences, from text to text: encoding and decoding of pieces is included in
the time. Each side runs at its best batch size, which is chosen on a part of the sentences, in
rounds one after the other, and the median of its rounds counts. On a CPU CTranslate2 has two more
sides, "x N": N batches at once, one thread each, as ours does, instead of all threads for one
batch, its default. Ours is there in every precision that the device supports, and with the exported
models (`ours CTranslate2 int8`), which loads them before the time begins; the last columns are its
speed divided by CTranslate2's, which is called as the model card of an export shows, with all
sentences at once. Either side's beam search goes on until as many hypotheses as the beam size have
ended, so the amount of search is the same; the length penalties, which choose among these
hypotheses, differ in form. The plain loop decodes sentence by sentence and all positions anew for
each token, as tutorials write it, on the first sentences only. Below the table are the sentences
that CTranslate2 translates otherwise in fp32, and how much our model prefers its word.
"""

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import ctranslate2
import sacrebleu
import torch
import typer
from load import Load, describe_share, neighbours
from sentencepiece import SentencePieceProcessor

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.system.device import DTYPES, supports
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID, Vocabulary
from transformer_mt.translation.export import export
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.runtime import EXTRA_LENGTH
from transformer_mt.translation.translation_model import build_translation_model, find_models

Translate = Callable[[list[str]], list[str]]


@dataclass(frozen=True)
class Extent:
    """How much is measured; the number of rounds is an option.

    Attributes:
        sentences: Sentences of the text, from its beginning; None is all.
        choosing: Sentences on which batch sizes are compared.
        plain: Sentences of the plain loop.
        batch_tokens: Batch sizes of each type of device.
    """

    sentences: int | None
    choosing: int
    plain: int
    batch_tokens: dict[str, tuple[int, ...]]


FULL = Extent(
    None, 1000, 100, {"cpu": (512, 1024, 2048, 4096, 8192), "cuda": (8192, 32768, 131072)}
)
QUICK = Extent(400, 200, 20, {"cpu": (1024, 4096), "cuda": (8192, 32768)})
QUICK_ROUNDS = 2
BEAM_SIZES = (1, 4)
ALPHA = 0.6
"""Exponent of the length penalty, for ours and CTranslate2."""
FASTEST_WEIGHTS = {"cpu": "int8", "cuda": "float16"}
"""The type of CTranslate2's weights that is its fastest, by device."""


def timed(translate: Translate, lines: list[str], load: Load) -> tuple[float, list[str]]:
    """Translates all lines once; gives the seconds it took, and the translations."""
    time.sleep(0.5)  # the threads of the side before wait actively for a while
    with load.watch():
        start = time.perf_counter()
        texts = translate(lines)
        return time.perf_counter() - start, texts


@dataclass
class Side:
    """One program in one precision, with one beam size, and what was measured of it.

    Attributes:
        name: Program and precision.
        beam_size: Beam size; 1 is greedy search.
        translations: Its translation at each batch size.
        batch_tokens: The batch size that was the fastest.
        seconds: Times of the rounds.
        texts: What it translated last.
        load: What other processes took during the rounds.
    """

    name: str
    beam_size: int
    translations: dict[int, Translate]
    batch_tokens: int = 0
    seconds: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    load: Load = field(default_factory=Load)

    def __str__(self) -> str:
        """Names it in a line of progress."""
        return f"{self.name}, beam {self.beam_size}"

    def choose_batch_tokens(self, lines: list[str]) -> None:
        """Finds the fastest batch size, each after one run to warm up."""
        times = {}
        for size, translate in self.translations.items():
            timed(translate, lines, Load())
            times[size], _ = timed(translate, lines, Load())
        self.batch_tokens = min(times, key=times.__getitem__)

    def measure(self, lines: list[str]) -> float:
        """Adds a round; gives its sentences per second."""
        seconds, self.texts = timed(self.translations[self.batch_tokens], lines, self.load)
        self.seconds.append(seconds)
        return len(lines) / seconds

    def row(self, checkpoint: Checkpoint, references: list[str]) -> dict[str, Any]:
        """Gives its medians, and the BLEU of its last round."""
        seconds = statistics.median(self.seconds)
        tokens = sum(map(len, checkpoint.vocab.tgt.encode(self.texts))) + len(self.texts)
        return {
            "side": self.name,
            "beam_size": self.beam_size,
            "batch_tokens": self.batch_tokens,
            "sentences_per_second": len(self.texts) / seconds,
            "tokens_per_second": tokens / seconds,
            "tokens": tokens,
            "bleu": sacrebleu.corpus_bleu(self.texts, [references]).score,
            "others_share": self.load.share,
        }


def our_translations(
    path: Path, device: str, precision: str | None, beam_size: int, sizes: tuple[int, ...]
) -> dict[int, Translate]:
    """Gives our translation at each batch size, with a run or an exported model."""
    model = build_translation_model(find_models([path]), LoadOptions(device, precision))

    def with_batch_tokens(batch_tokens: int) -> Translate:
        translator = model.translator(SearchOptions(beam_size, ALPHA, batch_tokens=batch_tokens))
        return translator.translate

    return {size: with_batch_tokens(size) for size in sizes}


def ctranslate2_translation(
    model: ctranslate2.Translator, vocab: Vocabulary, beam_size: int
) -> Callable[[int], Translate]:
    """Gives CTranslate2's translation at a batch size.

    Args:
        model: The exported model.
        vocab: Its vocabulary.
        beam_size: Beam size; 1 is greedy search.
    """
    src, tgt = (
        SentencePieceProcessor(model_proto=proto) for proto in (vocab.src_model, vocab.tgt_model)
    )

    def with_batch_tokens(batch_tokens: int) -> Translate:
        def translate(lines: list[str]) -> list[str]:
            pieces = src.encode(lines, out_type=str)
            results = model.translate_batch(
                pieces,
                beam_size=beam_size,
                length_penalty=ALPHA if beam_size > 1 else 0.0,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                max_decoding_length=max(map(len, pieces)) + EXTRA_LENGTH,
            )
            return tgt.decode([result.hypotheses[0] for result in results])

        return translate

    return with_batch_tokens


def plain_translation(checkpoint: Checkpoint, device: str) -> Translate:
    """Gives a loop without cache or batches."""
    model, vocab = checkpoint.build_model().to(device), checkpoint.vocab

    @torch.no_grad()
    def translate(lines: list[str]) -> list[str]:
        translations = []
        for ids in vocab.src.encode(lines):
            src = torch.tensor([[*ids, EOS_ID]], device=device)
            mask = model.src_mask(src)
            memory = model.encode(src, mask)
            tgt = torch.tensor([[BOS_ID]], device=device)
            for _ in range(len(ids) + EXTRA_LENGTH):
                output = model.decode(tgt, memory, mask)[:, -1]
                token = model.logits(output).argmax(-1, keepdim=True)
                tgt = torch.cat((tgt, token), dim=1)
                if token.item() == EOS_ID:
                    break
            translations += vocab.tgt.decode([[i for i in tgt[0, 1:].tolist() if i != EOS_ID]])
        return translations

    return translate


@torch.no_grad()
def preference(checkpoint: Checkpoint, line: str, first: str, second: str) -> float:
    """Gives by how much our model prefers the word at which two hypotheses part, in nats.

    It is the difference of their teacher-forced log-probabilities there.
    """
    vocab, model = checkpoint.vocab, checkpoint.build_model()
    src = torch.tensor([[*vocab.src.encode([line])[0], EOS_ID]])
    one, other = ([*ids, EOS_ID] for ids in vocab.tgt.encode([first, second]))
    place = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    scores = model(src, torch.tensor([[BOS_ID, *one[:place]]]))[0, -1].log_softmax(-1)
    return float(scores[one[place]] - scores[other[place]])


def load_ctranslate2(
    checkpoint: Checkpoint, folder: Path, device: str, threads: int
) -> dict[str, ctranslate2.Translator]:
    """Exports a checkpoint; loads it with each type of weights and each use of threads."""
    models = {}
    for weights in ("float32", FASTEST_WEIGHTS[device]):
        export(checkpoint, folder / weights, weights)
        load = partial(
            ctranslate2.Translator, str(folder / weights), device=device, compute_type=weights
        )
        models[f"CTranslate2 {weights}"] = load(intra_threads=threads)
        if device == "cpu" and threads > 1:
            models[f"CTranslate2 {weights} x {threads}"] = load(
                intra_threads=1, inter_threads=threads
            )
    return models


def load_sides(
    run: Path, folder: Path, device: str, threads: int, sizes: tuple[int, ...]
) -> list[Side]:
    """Loads every side, at every batch size."""
    checkpoint, sides = find_checkpoint(run), []
    models = load_ctranslate2(checkpoint, folder, device, threads)
    for beam_size in BEAM_SIZES:
        for name, model in models.items():
            make = ctranslate2_translation(model, checkpoint.vocab, beam_size)
            sides.append(Side(name, beam_size, {size: make(size) for size in sizes}))
        for precision in DTYPES:
            if supports(precision, torch.device(device)):
                translations = our_translations(run, device, precision, beam_size, sizes)
                sides.append(Side(f"ours {precision}", beam_size, translations))
        for weights in ("float32", FASTEST_WEIGHTS[device]):
            translations = our_translations(folder / weights, device, None, beam_size, sizes)
            sides.append(Side(f"ours CTranslate2 {weights}", beam_size, translations))
    return sides


def measure(sides: list[Side], lines: list[str], choosing: int, rounds: int) -> None:
    """Chooses batch sizes on some of the lines, then measures the sides with all lines in turn.

    In turn, so that a slow minute of the machine affects every side.
    """
    # Leaves out the modules of all sides, which a process that uses one side does not have.
    gc.freeze()
    for number, side in enumerate(sides, 1):
        side.choose_batch_tokens(lines[:choosing])
        report(f"batch size {number} of {len(sides)}: {side}: {side.batch_tokens} positions")
    for number in range(1, rounds + 1):
        for side in sides:
            report(f"round {number} of {rounds}: {side}: {side.measure(lines):.0f} sentences/s")


def measure_plain(checkpoint: Checkpoint, device: str, lines: list[str]) -> dict[str, Any]:
    """Measures the plain loop once; gives its row."""
    load, translate = Load(), plain_translation(checkpoint, device)
    seconds, _ = timed(translate, lines, load)
    report(f"plain loop: {len(lines) / seconds:.1f} sentences/s")
    return {
        "side": "plain loop fp32",
        "beam_size": 1,
        "sentences_per_second": len(lines) / seconds,
        "others_share": load.share,
    }


def report(progress: str) -> None:
    """Prints a line on stderr."""
    print(progress, file=sys.stderr, flush=True)


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Prints a line per side, its speed divided by those of CTranslate2 if it is not one of them.

    Args:
        title: Text above the names.
        rows: The rows; the plain loop's has only some of the values.
    """
    speeds = {(row["side"], row["beam_size"]): row["sentences_per_second"] for row in rows}
    others = list(dict.fromkeys(name for name, _ in speeds if name.startswith("CTranslate2")))
    titles = f"{'beam':>5}{'batch':>8}{'sentences/s':>13}{'tokens/s':>10}{'tokens':>8}{'BLEU':>7}"
    ratios = "".join(f"{name.replace('CTranslate2', '/'):>16}" for name in others)
    print(f"\n{title:26}{titles}{ratios}")
    for row in rows:
        name, beam_size, speed = row["side"], row["beam_size"], row["sentences_per_second"]
        line = f"{name:26}{beam_size:5}{row.get('batch_tokens', ''):>8}{speed:13.0f}"
        if "bleu" in row:
            line += f"{row['tokens_per_second']:10.0f}{row['tokens']:8}{row['bleu']:7.2f}"
        if name not in others:
            ratios = (f"{speed / speeds[other, beam_size]:16.2f}" for other in others)
            line = f"{line:77}" + "".join(ratios)
        print(f"{line:{77 + 16 * len(others)}}  {describe_share(row['others_share'])}".rstrip())


def print_differences(
    checkpoint: Checkpoint, lines: list[str], ours: list[str], others: list[str]
) -> int:
    """Prints and counts the sentences that CTranslate2 translates otherwise."""
    triples = zip(lines, ours, others, strict=True)
    different = [triple for triple in triples if triple[1] != triple[2]]
    print(f"CTranslate2 translates {len(different)} of {len(lines)} sentences otherwise, in fp32")
    for line, our_line, other_line in different:
        nats = preference(checkpoint, line, our_line, other_line)
        print(f"  ours is preferred by {nats:.2e} nats\n    {our_line}\n    {other_line}")
    return len(different)


def main(
    run: Annotated[Path, typer.Argument(help="A run.")],
    src: Annotated[Path, typer.Argument(help="Source text.")],
    ref: Annotated[Path, typer.Argument(help="Its reference translation.")],
    threads: Annotated[int, typer.Option(help="CPU threads of either side.")] = 2,
    rounds: Annotated[int, typer.Option(help="Measurements of each, after one to warm up.")] = 5,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    busy: Annotated[int, typer.Option("--neighbours", help="Busy processes beside it.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Less of everything.")] = False,
) -> None:
    """Measures every side."""
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # which our exported models obey
    extent = QUICK if quick else FULL
    lines, references = (
        path.read_text().split("\n")[:-1][: extent.sentences] for path in (src, ref)
    )
    checkpoint = find_checkpoint(run)
    with tempfile.TemporaryDirectory() as folder, neighbours(busy):
        sides = load_sides(run, Path(folder), device, threads, extent.batch_tokens[device])
        measure(sides, lines, extent.choosing, min(rounds, QUICK_ROUNDS) if quick else rounds)
        plain_row = measure_plain(checkpoint, device, lines[: extent.plain])
    rows = [*(side.row(checkpoint, references) for side in sides), plain_row]
    print_table(f"quick, {len(lines)} sentences" if quick else f"{len(lines)} sentences", rows)
    texts = {(side.name, side.beam_size): side.texts for side in sides}
    ours, others = texts["ours fp32", 1], texts["CTranslate2 float32", 1]
    differ = print_differences(checkpoint, lines, ours, others)
    machine = {"threads": threads, "cores": os.cpu_count(), "torch": torch.__version__}
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    result = {"benchmark": "decode", "quick": quick, "neighbours": busy, "rows": rows}
    print(json.dumps(result | {"differ": differ, "machine": machine}))


if __name__ == "__main__":
    typer.run(main)
