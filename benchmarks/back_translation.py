"""What English text without German gives: a third of the pairs, and the English of the rest.

    python benchmarks/back_translation.py configs/multi30k.toml --text FOLDER --work DIR

FOLDER has train, val and test_2016_flickr (.de and .en). For each seed a reverse model is trained
on the third; it translates the other English by a beam of 4, by sampling, and by sampling from the
ten most probable pieces. A model is trained on the third and each of these, on the third alone, and
on all pairs: the bounds. The recipe and the number of steps are the same for all.

The commands are those of docs/monolingual.md. The same command again continues. Scores are BLEU on
test_2016_flickr, greedy and by a beam of 4: a table, and as the last line JSON.
"""

import json
import statistics
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

SEARCHES = {
    "beam": ["--beam-size", "4"],
    "sampled": ["--sample"],
    "top-10": ["--sample", "--top-k", "10"],
}
"""How the reverse model translates, by the name of the text that this makes."""


def program(*arguments: object) -> str:
    """Runs the program; its messages go to stderr."""
    command = [sys.executable, "-m", "transformer_mt", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def cut_text(text: Path, folder: Path) -> None:
    """Writes every third pair as `third`, the English of the others as `rest`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            lines = (text / f"{name}.{language}").read_text("utf-8").split("\n")[:-1]
            parts = {name: lines}
            if name == "train":
                parts["third"] = list(islice(lines, 0, None, 3))
                if language == "en":
                    parts["rest"] = [line for i, line in enumerate(lines) if i % 3]
            for part, content in parts.items():
                write(folder / f"{part}.{language}", content)


def write(path: Path, lines: list[str]) -> None:
    """Writes a file that is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    part.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    part.replace(path)


def train(config: Path, folder: Path, run: str, seed: int, changes: list[str]) -> Path:
    """Trains a run, or does nothing if it is finished; gives its directory."""
    path = folder / f"{run}-{seed}"
    settings = [f"data.path={folder}", 'vocab.symbols=["<bt>"]', f"train.seed={seed}", *changes]
    options = [word for setting in settings for word in ("--set", setting)]
    program("train", config, "--run", path, *options)
    return path


def translate_back(reverse: Path, folder: Path, search: str, seed: int) -> str:
    """Makes pairs of the English of the rest; gives the name of the split."""
    name = f"{search}-{seed}"
    plain, output = folder / f"{name}.plain", folder / f"{name}.de"
    if not output.exists():
        draws = ["--seed", seed] if "--sample" in SEARCHES[search] else []
        inputs = ["--input", folder / "rest.en", "--output", plain]
        program("translate", reverse, *SEARCHES[search], *draws, *inputs)
        write(folder / f"{name}.en", (folder / "rest.en").read_text("utf-8").split("\n")[:-1])
        write(output, [f"<bt> {line}" for line in plain.read_text("utf-8").split("\n")[:-1]])
    return name


def main(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The recipe of all models.")],
    text: Annotated[Path, typer.Option(help="The folder of Multi30k.")],
    work: Annotated[Path, typer.Option(help="A folder for text and runs.")],
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Default: 1, 2, 3.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE.")] = None,
) -> None:
    """Trains and scores all models."""
    folder, given = work.resolve(), changes or []
    cut_text(text, folder)
    scores: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds or [1, 2, 3]:
        swapped = ["data.train=third", "data.src_lang=en", "data.tgt_lang=de"]
        reverse = train(config, folder, "reverse", seed, [*given, *swapped])
        splits = {"third": '"third"', "all": '"train"'}
        for search in SEARCHES:
            splits[search] = f'["third", "{translate_back(reverse, folder, search, seed)}"]'
        for name, split in splits.items():
            run = train(config, folder, name, seed, [*given, f"data.train={split}"])
            searches = [], ["--beam-size", "4"]
            found = (program("evaluate", run, *search, "--json") for search in searches)
            greedy, beam = (json.loads(line)["bleu"] for line in found)
            scores.setdefault(name, []).append((greedy, beam))
            print(f"seed {seed} {name}: {greedy:.2f} greedy, {beam:.2f} by a beam", file=sys.stderr)
    print(f"{'trained on':<12} greedy  beam 4   mean of {len(seeds or [1, 2, 3])} seeds")
    for name, pairs in scores.items():
        greedy, beam = (statistics.mean(values) for values in zip(*pairs, strict=True))
        print(f"{name:<12} {greedy:>6.2f}  {beam:>6.2f}")
    print(json.dumps(scores))


if __name__ == "__main__":
    typer.run(main)
