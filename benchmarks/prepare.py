"""WMT16 at full size: preparing 4.5 million pairs, and starting to train on them.

    python benchmarks/prepare.py FOLDER [--pairs 4500000]

Makes a corpus in FOLDER (7 GB of room at full size) and runs `transformer-mt` on it. How it is
made: each language has a million word forms of random letters, the frequent ones shorter, drawn
by Zipf's law (exponent 1); a target line has as many words as the source give or take a fifth;
lengths are gamma-distributed with a mean of 25 words. One line in fifty is junk: empty, a copy of
the line before, the same on both sides, digits, or far too long. Memory is the proportional set
size of the process and its children.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

FORMS = 1_000_000
BLOCK = 50_000
CONFIG = Path(__file__).parents[1] / "configs" / "wmt16-base.toml"


def word_forms(seed: int) -> np.ndarray:
    """Makes distinct words, about log-many letters by rank."""
    rng = np.random.default_rng(seed)
    alphabet = list("etaonisrhldcumfpgwybvkxjqzäöüß")
    weights = 1.0 / np.arange(1, len(alphabet) + 1) ** 0.5
    forms: dict[str, None] = {}
    while len(forms) < FORMS:
        letters = 1 + rng.poisson(1.2 + 0.55 * np.log(len(forms) + 1), BLOCK)
        drawn = rng.choice(alphabet, int(letters.sum()), p=weights / weights.sum())
        text, start = "".join(drawn), 0
        for count in letters.tolist():
            forms[text[start : start + count]] = None
            start += count
    return np.array(list(forms)[:FORMS], dtype=object)


def junk(src: list[str], tgt: list[str], rng: np.random.Generator) -> None:
    """Spoils one line in fifty as web text is spoilt."""
    for i in rng.choice(len(src), len(src) // 50, replace=False).tolist():
        kind = i % 5
        if kind == 0:
            tgt[i] = ""
        elif kind == 1:
            src[i], tgt[i] = src[i - 1], tgt[i - 1]
        elif kind == 2:
            tgt[i] = src[i]
        elif kind == 3:
            src[i] = tgt[i] = "12 / 34 . 56 -- 7"
        else:
            src[i] = " ".join([src[i]] * 20)


def make_corpus(folder: Path, pairs: int) -> None:
    """Writes train.de and train.en, and a small validation set."""
    folder.mkdir(parents=True, exist_ok=True)
    forms = [word_forms(seed) for seed in (1, 2)]
    cumulative = np.cumsum(1.0 / np.arange(1, FORMS + 1))
    rng = np.random.default_rng(3)
    files = [
        (folder / f"train.{language}").open("w", encoding="utf-8") for language in ("de", "en")
    ]
    for start in range(0, pairs, BLOCK):
        count = min(BLOCK, pairs - start)
        words = np.maximum(1, rng.gamma(2.5, 10.0, count).astype(np.int64))
        other = np.maximum(1, (words * rng.lognormal(0.0, 0.2, count)).astype(np.int64))
        sides = []
        for lengths, vocabulary in zip((words, other), forms, strict=True):
            drawn = rng.random(int(lengths.sum())) * cumulative[-1]
            text = vocabulary[np.searchsorted(cumulative, drawn)].tolist()
            ends = np.cumsum(lengths).tolist()
            sides.append([" ".join(text[a:b]) for a, b in zip([0, *ends], ends, strict=False)])
        junk(*sides, rng)
        for file, side in zip(files, sides, strict=True):
            file.writelines(f"{line}\n" for line in side)
    for file in files:
        file.close()
    for language in ("de", "en"):
        with (folder / f"train.{language}").open(encoding="utf-8") as text:
            head = "".join(next(text) for _ in range(200))
        (folder / f"validation.{language}").write_text(head, encoding="utf-8")


def proportional_size(pid: int) -> int:
    """Sums the proportional set sizes of a process and its children, in bytes."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(map(proportional_size, map(int, (task / "children").read_text().split())))
    except (OSError, ValueError):
        pass
    return total


def run(*arguments: object) -> tuple[float, int, str]:
    """Runs the program; gives seconds, peak memory and what it said."""
    began, peak = time.perf_counter(), 0
    command = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(process.stderr or ()))
    reader.start()
    while process.poll() is None:
        peak = max(peak, proportional_size(process.pid))
        time.sleep(0.2)
    reader.join()
    if process.returncode:
        raise SystemExit("".join(said))
    return time.perf_counter() - began, peak, "".join(said)


def first_step(run_dir: Path, settings: list[str]) -> float:
    """Starts training; gives the seconds until its metrics hold the first step."""
    command = [sys.executable, "-m", "transformer_mt", "train", str(CONFIG), "--run", str(run_dir)]
    metrics = run_dir / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen([*command, *settings], stderr=subprocess.DEVNULL)
    while not (metrics.exists() and '"step": 1,' in metrics.read_text()):
        if process.poll() is not None:
            raise SystemExit(f"training ended with {process.returncode}")
        time.sleep(0.05)
    seconds = time.perf_counter() - began
    process.kill()
    process.wait()
    return seconds


def main(
    folder: Annotated[Path, typer.Argument(help="Where to put corpus and results.")],
    pairs: Annotated[int, typer.Option(help="Pairs of the corpus.")] = 4_500_000,
) -> None:
    """Measures every phase."""
    corpus, result = folder / "corpus", {"benchmark": "prepare", "pairs": pairs}
    if not (corpus / "validation.en").exists():
        make_corpus(corpus, pairs)
    raw = sum((corpus / f"train.{language}").stat().st_size for language in ("de", "en"))
    values = {
        "data.path": corpus,
        "data.name": "none",
        "data.prepared_dir": folder / "prepared",
        "data.drop_duplicates": "true",
        "data.drop_identical": "true",
        "data.drop_control": "true",
        "data.min_letters": 0.5,
        "data.max_length_ratio": 4.0,
        "train.batch_tokens": 200,
        "train.log_every": 1,
        "train.precision": "fp32",
    }
    settings = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    seconds, peak, said = run("prepare", CONFIG, *settings)
    print(said)
    disk = sum(path.stat().st_size for path in (folder / "prepared").rglob("*") if path.is_file())
    result |= {
        "prepare_seconds": seconds,
        "prepare_peak_gib": peak / 2**30,
        "disk_over_raw_text": disk / raw,
    }
    result["first_step_seconds"] = first_step(folder / "run", settings)
    for key, value in result.items():
        print(f"{key:>26}  {value:,.3f}" if isinstance(value, float) else f"{key:>26}  {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    typer.run(main)
