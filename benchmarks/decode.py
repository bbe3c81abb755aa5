"""Translation speed of one model: ours, CTranslate2's and a plain loop's, side by side.

    python benchmarks/decode.py RUN test.de test.en [--threads 2] [--device cuda]

The same weights and sentences, from text to text: encoding and decoding of pieces is included in
the time. Each side runs at its best batch size, in rounds one after the other, and the median of
its rounds counts. The plain loop decodes sentence by sentence and all positions anew
for each token, as tutorials write it, on the first sentences only. Below the table are the
sentences that CTranslate2 translates otherwise in fp32, and how much our model prefers its word.
Prints, as its last line, one JSON object.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import ctranslate2
import torch
import typer

from transformer_mt.checkpoints.checkpoint import Checkpoint
from transformer_mt.checkpoints.run_directory import find_checkpoint
from transformer_mt.evaluation.scoring import bleu
from transformer_mt.system.device import supports
from transformer_mt.text.vocabulary import BOS_ID, EOS_ID
from transformer_mt.translation.export import export
from transformer_mt.translation.loading import build_translation_model, find_checkpoints
from transformer_mt.translation.options import LoadOptions, SearchOptions
from transformer_mt.translation.translator import EXTRA_LENGTH

Translate = Callable[[list[str]], list[str]]
Side = tuple[str, int]
"""A side of the comparison: its name and its beam size."""

PLAIN_SENTENCES = 100
BATCH_TOKENS = {"cpu": (2048, 4096, 8192, 16384), "cuda": (8192, 32768, 131072)}


def our_translation(
    run: Path, device: str, precision: str, beam_size: int, batch_tokens: int
) -> Translate:
    """Gives our translation at one batch size."""
    model = build_translation_model(find_checkpoints([run]), LoadOptions(device, precision))
    translator = model.translator(SearchOptions(beam_size, batch_tokens=batch_tokens))
    return lambda lines: list(translator.translate(lines))


def ctranslate2_translation(
    checkpoint: Checkpoint, exported: Path, device: str, threads: int, beam_size: int
) -> Callable[[int], Translate]:
    """Gives CTranslate2's translation at a batch size.

    Args:
        checkpoint: The checkpoint, for its vocabulary.
        exported: Its exported model, in a folder named after the type of its weights.
        device: `cpu` or `cuda`.
        threads: CPU threads.
        beam_size: Beam size; 1 is greedy search.
    """
    vocab = checkpoint.vocab
    model = ctranslate2.Translator(
        str(exported), device=device, compute_type=exported.name, intra_threads=threads
    )
    ids = {piece: i for i, piece in enumerate(vocab.tgt_pieces(range(vocab.tgt_size)))}

    def with_batch_tokens(batch_tokens: int) -> Translate:
        def translate(lines: list[str]) -> list[str]:
            pieces = [vocab.src_pieces(row) for row in vocab.encode_src(lines)]
            results = model.translate_batch(
                pieces,
                beam_size=beam_size,
                length_penalty=0.6 if beam_size > 1 else 0.0,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                max_decoding_length=max(map(len, pieces)) + EXTRA_LENGTH,
            )
            rows = [[ids[piece] for piece in result.hypotheses[0]] for result in results]
            return [vocab.decode_tgt(row) for row in rows]

        return translate

    return with_batch_tokens


def plain_translation(checkpoint: Checkpoint, device: str) -> Translate:
    """Gives a loop without cache or batches."""
    model, vocab = checkpoint.build_model().to(device), checkpoint.vocab

    @torch.no_grad()
    def translate(lines: list[str]) -> list[str]:
        translations = []
        for ids in vocab.encode_src(lines):
            src = torch.tensor([[*ids, EOS_ID]], device=device)
            memory, mask = model.encode(src), model.src_mask(src)
            tgt = torch.tensor([[BOS_ID]], device=device)
            for _ in range(len(ids) + EXTRA_LENGTH):
                token = model.decode(tgt, memory, mask)[:, -1].argmax(-1, keepdim=True)
                tgt = torch.cat((tgt, token), dim=1)
                if token.item() == EOS_ID:
                    break
            translations.append(vocab.decode_tgt([i for i in tgt[0, 1:].tolist() if i != EOS_ID]))
        return translations

    return translate


def seconds(translate: Translate, lines: list[str]) -> float:
    """Times one translation of all lines."""
    time.sleep(0.5)  # the threads of the side before wait actively for a while
    start = time.perf_counter()
    translate(lines)
    return time.perf_counter() - start


@torch.no_grad()
def preference(checkpoint: Checkpoint, line: str, first: str, second: str) -> float:
    """Gives by how much our model prefers the word at which two hypotheses part, in nats.

    It is the difference of their teacher-forced log-probabilities there.
    """
    vocab, model = checkpoint.vocab, checkpoint.build_model()
    src = torch.tensor([[*vocab.encode_src([line])[0], EOS_ID]])
    one, other = ([*ids, EOS_ID] for ids in vocab.encode_tgt([first, second]))
    place = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    scores = model(src, torch.tensor([[BOS_ID, *one[:place]]]))[0, -1].log_softmax(-1)
    return float(scores[one[place]] - scores[other[place]])


def load_sides(
    run: Path, folder: Path, device: str, threads: int
) -> dict[Side, dict[int, Translate]]:
    """Loads every side, at every batch size."""
    checkpoint = find_checkpoint(run)
    sides: dict[Side, dict[int, Translate]] = {}
    for beam_size in (1, 4):
        for weights in ("float32", "int8" if device == "cpu" else "float16"):
            if not (folder / weights).exists():
                export(checkpoint, folder / weights, weights)
            make = ctranslate2_translation(checkpoint, folder / weights, device, threads, beam_size)
            sides[f"CTranslate2 {weights}", beam_size] = {
                size: make(size) for size in BATCH_TOKENS[device]
            }
        for precision in ("fp32", "bf16"):
            if supports(precision, torch.device(device)):
                sides[f"ours {precision}", beam_size] = {
                    size: our_translation(run, device, precision, beam_size, size)
                    for size in BATCH_TOKENS[device]
                }
    return sides


def choose_batch_tokens(
    sides: dict[Side, dict[int, Translate]], lines: list[str]
) -> dict[Side, int]:
    """Finds the fastest batch size of each side, after one run to warm up."""
    best = {}
    for side, translations in sides.items():
        times = {}
        for size, translate in translations.items():
            seconds(translate, lines)
            times[size] = seconds(translate, lines)
        best[side] = min(times, key=times.__getitem__)
    return best


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints a line per side."""
    titles = f"{'sentences/s':>13}{'tokens/s':>10}{'tokens':>8}{'BLEU':>7}"
    print(f"{'':22}{'beam':>5}{'batch':>8}{titles}")
    for row in rows:
        name, beam_size, size, sentences, tokens_per_second, tokens, score = row.values()
        speed = f"{sentences:13.0f}{tokens_per_second:10.0f}"
        print(f"{name:22}{beam_size:5}{size:8}{speed}{tokens:8}{score:7.2f}")


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
) -> None:
    """Measures every side."""
    torch.set_num_threads(threads)
    lines, references = (path.read_text().split("\n")[:-1] for path in (src, ref))
    checkpoint = find_checkpoint(run)
    with tempfile.TemporaryDirectory() as folder:
        sides = load_sides(run, Path(folder), device, threads)
        best = choose_batch_tokens(sides, lines)
        times: dict[Side, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):  # in turn, so that a slow minute of the machine affects all
            for side, size in best.items():
                times[side].append(seconds(sides[side][size], lines))
        texts = {side: sides[side][size](lines) for side, size in best.items()}
    rows: list[dict[str, Any]] = []
    for side, size in best.items():
        tokens = sum(map(len, checkpoint.vocab.encode_tgt(texts[side]))) + len(lines)
        rows.append(
            {
                "side": side[0],
                "beam_size": side[1],
                "batch_tokens": size,
                "sentences_per_second": len(lines) / statistics.median(times[side]),
                "tokens_per_second": tokens / statistics.median(times[side]),
                "tokens": tokens,
                "bleu": bleu(texts[side], [references]).value,
            }
        )
    print_table(rows)
    first_lines = lines[:PLAIN_SENTENCES]
    plain_speed = len(first_lines) / seconds(plain_translation(checkpoint, device), first_lines)
    print(f"{'plain loop, fp32':22}{1:5}{'':8}{plain_speed:13.0f}")
    ours, others = texts["ours fp32", 1], texts["CTranslate2 float32", 1]
    differ = print_differences(checkpoint, lines, ours, others)
    machine = {"threads": threads, "cores": os.cpu_count(), "torch": torch.__version__}
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    plain_row = {"side": "plain", "sentences_per_second": plain_speed}
    result = {"benchmark": "decode", "rows": [*rows, plain_row], "differ": differ}
    print(json.dumps(result | {"machine": machine}))


if __name__ == "__main__":
    typer.run(main)
