"""Writes the tables in both READMEs, and the plot of BLEU by minutes, from results.jsonl.

    python benchmarks/show.py

A line of results.jsonl is one result of one system; the systems of a comparison share task,
machine and date. `value` is of greedy search where it is BLEU, `beam` of a beam of 4, `seconds` the
time of training (null if it was not recorded), `commit` the commit that recorded it first, `curve`
has pairs of minutes and greedy validation BLEU, and `readme` numbers the rows of the short table.
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from transformer_mt.figures.canvas import ACCENT, figure_style, render

ROOT = Path(__file__).parents[1]
FIELDS = "task system text machine date commit command metric value beam seconds seeds page".split()
PLOTTED = {"Multi30k, 10 minutes": "Multi30k", "news, 25 minutes": "news"}
PLOT = "docs/images/bleu-by-minutes.svg"
STYLES = {
    "transformer-mt": (ACCENT, "o-"),
    "nn.Transformer loop": ("#c44e52", "s-"),
    "JoeyNMT 2.3.0": ("#8c6d31", "x-"),
    "JoeyNMT 2.3.0, our sizes": ("#4f8f4f", "^-"),
}
MARK = "<!-- by benchmarks/show.py -->\n"

Record = dict[str, Any]


def read_records() -> list[Record]:
    """Reads the results; each must have all fields."""
    lines = (ROOT / "benchmarks/results.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        if missing := [name for name in FIELDS if name not in record]:
            raise ValueError(f"{record}: {', '.join(missing)} missing")
    return records


def make_table(comparisons: list[list[Record]], folder: str = "") -> str:
    """Makes the table of our results, each with its best peer and its page in a folder."""
    rows = ["| task | machine | minutes | result | best peer | page |", "|---" * 6 + "|"]
    for ours, *others in comparisons:
        peers = [each for each in others if each["metric"] == ours["metric"]]
        best = max(peers, key=lambda each: each["value"], default=None)
        peer = f"{_value(best)} {best['system']}" if best else ""
        minutes = f"{ours['seconds'] / 60:.3g}" if ours["seconds"] else ""
        seeds = f", {len(ours['seeds'])} seeds" if len(ours["seeds"]) > 1 else ""
        beam = f"; beam {ours['beam']:.2f}" if ours["beam"] else ""
        result = f"**{_value(ours)}** {ours['metric']}{beam}{seeds}"
        link = f"[{ours['date']}]({folder}{ours['page']})"
        cells = ours["task"], ours["machine"], minutes, result, peer, link
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _value(record: Record) -> str:
    return f"{record['value']:{'.2f' if record['metric'].endswith('BLEU') else ','}}"


def draw_curves(records: list[Record]) -> bytes:
    """Draws validation BLEU by minutes of training, one panel for each text."""
    with figure_style():
        figure = Figure((5.2, 6.0), layout="constrained")  # narrow, to be read on phones too
        for axes, (task, title) in zip(figure.subplots(2, 1), PLOTTED.items(), strict=True):
            curves = {each["system"]: each["curve"] for each in records if each["task"] == task}
            for system, (color, style) in STYLES.items():
                minutes, bleu = zip(*curves[system], strict=True)
                axes.plot(minutes, bleu, style, color=color, label=system)
            axes.set(title=title, xlabel="minutes, two CPU cores", ylabel="validation BLEU", xlim=0)
        axes.legend(loc="upper left")
    return render(figure, "svg")


def make_files() -> dict[str, bytes]:
    """Makes the content of every file that depends on the results, by its path."""
    records = read_records()
    by_comparison = groupby(records, lambda each: [each[k] for k in ("task", "machine", "date")])
    every = [list(group) for _, group in by_comparison]
    short = [group for group in every if "readme" in group[0]]
    short.sort(key=lambda group: group[0]["readme"])
    files = {PLOT: draw_curves(records)}
    tables = (
        ("benchmarks/README.md", make_table(every)),
        ("README.md", make_table(short, "benchmarks/")),
    )
    for name, table in tables:
        before, _, after = (ROOT / name).read_text("utf-8").split(MARK)
        files[name] = f"{before}{MARK}{table}{MARK}{after}".encode()
    return files


if __name__ == "__main__":
    for name, content in make_files().items():
        (ROOT / name).write_bytes(content)
