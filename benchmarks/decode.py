"""Translation speed of one model: ours, CTranslate2's and a plain loop's, side by side.

    python benchmarks/decode.py RUN test.de test.en [--threads 2] [--device cuda]

The same weights and sentences, from text to text: pieces are made and joined again in the time
that is measured. Each side runs at the best of some batch sizes, in rounds one after the other, and
the median of its rounds counts. The plain loop decodes sentence by sentence and all positions anew
for each token, as tutorials write it, on the first sentences only. Under the table come the
sentences that CTranslate2 translates otherwise in fp32, with how nearly ours chose its word too.
Prints, as its last line, one JSON object.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

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
PLAIN_SENTENCES = 100


def ours(run: Path, device: str, precision: str, beam_size: int, batch_tokens: int) -> Translate:
    """Gives our translation at one batch size."""
    model = build_translation_model(find_checkpoints([run]), LoadOptions(device, precision))
    translator = model.translator(SearchOptions(beam_size, batch_tokens=batch_tokens))
    return lambda lines: list(translator.translate(lines))


def theirs(
    checkpoint: Checkpoint, folder: Path, device: str, weights: str, threads: int, beam_size: int
) -> Callable[[int], Translate]:
    """Gives CTranslate2's translation at a batch size."""
    model, vocab = folder / weights, checkpoint.vocab
    if not model.exists():
        export(checkpoint, model, weights)
    its = ctranslate2.Translator(
        str(model), device=device, compute_type=weights, intra_threads=threads
    )
    numbers = {piece: i for i, piece in enumerate(vocab.tgt_pieces(range(vocab.tgt_size)))}

    def at(batch_tokens: int) -> Translate:
        def translate(lines: list[str]) -> list[str]:
            pieces = [vocab.src_pieces(row) for row in vocab.encode_src(lines)]
            found = its.translate_batch(
                pieces,
                beam_size=beam_size,
                length_penalty=0.6 if beam_size > 1 else 0.0,
                max_batch_size=batch_tokens,
                batch_type="tokens",
                max_decoding_length=max(map(len, pieces)) + EXTRA_LENGTH,
            )
            rows = [[numbers[piece] for piece in some.hypotheses[0]] for some in found]
            return [vocab.decode_tgt(row) for row in rows]

        return translate

    return at


def plain(checkpoint: Checkpoint, device: str) -> Translate:
    """Gives a loop without cache or batches."""
    model, vocab = checkpoint.build_model().to(device), checkpoint.vocab

    @torch.no_grad()
    def translate(lines: list[str]) -> list[str]:
        found = []
        for ids in vocab.encode_src(lines):
            src = torch.tensor([[*ids, EOS_ID]], device=device)
            memory, mask = model.encode(src), model.src_mask(src)
            tgt = torch.tensor([[BOS_ID]], device=device)
            for _ in range(len(ids) + EXTRA_LENGTH):
                token = model.decode(tgt, memory, mask)[:, -1].argmax(-1, keepdim=True)
                tgt = torch.cat((tgt, token), dim=1)
                if token.item() == EOS_ID:
                    break
            found.append(vocab.decode_tgt([i for i in tgt[0, 1:].tolist() if i != EOS_ID]))
        return found

    return translate


def seconds(translate: Translate, lines: list[str]) -> float:
    """Times one translation of all lines."""
    time.sleep(0.5)  # the threads of the side before wait actively for a while
    began = time.perf_counter()
    translate(lines)
    return time.perf_counter() - began


@torch.no_grad()
def nearness(checkpoint: Checkpoint, line: str, mine: str, its: str) -> float:
    """Gives by how much the first word on which two hypotheses differ was preferred, in nats.

    It is the gap between ours and CTranslate2's choice in our own teacher-forced log-probabilities.
    """
    vocab, model = checkpoint.vocab, checkpoint.build_model()
    src = torch.tensor([[*vocab.encode_src([line])[0], EOS_ID]])
    first, second = ([*ids, EOS_ID] for ids in vocab.encode_tgt([mine, its]))
    place = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    scores = model(src, torch.tensor([[BOS_ID, *first[:place]]]))[0, -1].log_softmax(-1)
    return float(scores[first[place]] - scores[second[place]])


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
    checkpoint, rows = find_checkpoint(run), []
    sizes = (2048, 4096, 8192, 16384) if device == "cpu" else (8192, 32768, 131072)
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[tuple[str, int], list[tuple[int, Translate]]] = {}
        for beam_size in (1, 4):
            for weights in ("float32", "int8" if device == "cpu" else "float16"):
                its = theirs(checkpoint, Path(folder), device, weights, threads, beam_size)
                sides[f"CTranslate2 {weights}", beam_size] = [(size, its(size)) for size in sizes]
            for precision in ("fp32", "bf16"):
                if supports(precision, torch.device(device)):
                    sides[f"ours {precision}", beam_size] = [
                        (size, ours(run, device, precision, beam_size, size)) for size in sizes
                    ]
        best = {}
        for side, some in sides.items():
            times = []
            for size, translate in some:
                seconds(translate, lines)
                times.append((seconds(translate, lines), size, translate))
            best[side] = min(times, key=lambda found: found[0])[1:]
        measured: dict[tuple[str, int], list[float]] = {side: [] for side in best}
        for _ in range(rounds):  # in turn, so that a slow minute of the machine strikes all
            for side, (_, translate) in best.items():
                measured[side].append(seconds(translate, lines))
        texts = {side: translate(lines) for side, (_, translate) in best.items()}
    loop = plain(checkpoint, device)
    took = len(lines) / PLAIN_SENTENCES * seconds(loop, lines[:PLAIN_SENTENCES])
    print(
        f"{'':22}{'beam':>5}{'batch':>8}{'sentences/s':>13}{'tokens/s':>10}{'tokens':>8}{'BLEU':>7}"
    )
    for side, times in measured.items():
        tokens = sum(map(len, checkpoint.vocab.encode_tgt(texts[side]))) + len(lines)
        rows.append(
            {
                "side": side[0],
                "beam_size": side[1],
                "batch_tokens": best[side][0],
                "sentences_per_second": len(lines) / statistics.median(times),
                "tokens_per_second": tokens / statistics.median(times),
                "tokens": tokens,
                "bleu": bleu(texts[side], references).value,
            }
        )
    for row in rows:
        name, beam_size, size, speed, rate, tokens, score = row.values()
        print(f"{name:22}{beam_size:5}{size:8}{speed:13.0f}{rate:10.0f}{tokens:8}{score:7.2f}")
    print(f"{'plain loop, fp32':22}{1:5}{'':8}{len(lines) / took:13.0f}")
    both = zip(lines, texts["ours fp32", 1], texts["CTranslate2 float32", 1], strict=True)
    different = [some for some in both if some[1] != some[2]]
    print(f"{len(different)} of {len(lines)} sentences differ between ours and its, greedy, fp32")
    for line, mine, other in different:
        gap = nearness(checkpoint, line, mine, other)
        print(f"  ours is preferred by {gap:.2e} nats\n    {mine}\n    {other}")
    machine = {"threads": threads, "cores": os.cpu_count(), "torch": torch.__version__}
    if device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    plain_row = {"side": "plain", "sentences_per_second": len(lines) / took}
    result = {"benchmark": "decode", "rows": [*rows, plain_row], "differ": len(different)}
    print(json.dumps(result | {"machine": machine}))


if __name__ == "__main__":
    typer.run(main)
