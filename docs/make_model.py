"""Writes the pictures of model.md, and its table of the core's files with their lines.

make reference
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from transformer_mt.model.multi_head_attention import attention_weights
from transformer_mt.model.transformer import sinusoid
from transformer_mt.training.optimizer import noam_rate

DOCS = Path(__file__).parent
PACKAGE = DOCS.parent / "transformer_mt"
PAGE = DOCS / "model.md"
MARK = "<!-- by docs/make_model.py -->\n"
CORE = {
    "training": """
        model/transformer.py model/multi_head_attention.py training/loss.py training/optimizer.py
        training/engine.py training/trainer.py text/batching.py""",
    "translating": """
        translation/search.py translation/runtime.py translation/translator.py text/splitting.py""",
    "storage": "text/vocabulary.py text/prepared.py checkpoints/checkpoint.py",
}
"""The modules that compute, and those that hold what they read and write."""
LEVELS = 15
"""Colours of a heat map; few, so that a rounding error of another machine changes none."""
INK, FAINT, BLUE, ORANGE = "#1a1a1a", "#d9d9d9", (47, 116, 181), (201, 120, 20)
WIDTH = 800
"""All pictures are this wide, on white, so that they can be read on dark pages too."""


def make_table() -> str:
    """Makes the table of the core: code, comments, docstrings and blank lines of each file."""
    rows, total = ["| part | file | lines |", "|---|---|---|"], 0
    for part, names in CORE.items():
        for name in names.split():
            lines = len((PACKAGE / name).read_text("utf-8").splitlines())
            rows.append(f"| {part} | [{name}](../transformer_mt/{name}) | {lines} |")
            total += lines
    return "\n".join((*rows, f"| all | | {total:,} |")) + "\n"


def draw_positions() -> str:
    """Draws the encodings of 64 positions of width 32, a row for each dimension."""
    values = sinusoid(torch.arange(64), 32)
    cell, left = 11, 90
    title = "positional encodings of width 32; blue is 1, white 0, orange -1"
    parts = [_text(left + cell * 32, 26, title, "middle")]
    # Sines and cosines apart: alternating, they would look like stripes.
    for top, first, name in ((45, 0, "sines"), (241, 1, "cosines")):
        parts += _heat_map(values[:, first::2].T, (left, top), cell, signed=True)
        parts += _grid(left, top, 16 * cell, (1, 4))
        for y, label in ((12, first), (94, name), (174, first + 30)):
            parts.append(_text(left - 8, top + y, str(label), "end"))
    for position in range(0, 64, 8):
        parts.append(_text(left + cell * (position + 0.5), 435, str(position), "middle"))
    parts.append(_text(left + cell * 32, 457, "position", "middle"))
    parts.append(_text(left - 8, 26, "dimension", "end"))
    return _svg(470, parts)


def draw_masks() -> str:
    """Draws the padding mask and the causal mask of the page's two sentences."""
    cell, top = 44, 96
    padding = torch.tensor([[True] * 4, [True] * 3 + [False]])
    parts = [_text(110, 26, "padding mask of two sources"), _text(470, 26, "causal mask")]
    parts += [_text(110, 60, "key"), _text(470, 60, "key"), _text(430, 82, "query", "end")]
    parts.append(_text(110, 230, "blue: True, may attend"))
    for left, mask, columns, rows in (
        (110, padding, "1 2 3 4", "sentence&#160;1 sentence&#160;2"),
        (470, torch.ones(4, 4).tril(), "BOS 7 6 5", "BOS 7 6 5"),
    ):
        parts += _heat_map(mask.float(), (left, top), cell)
        parts += _grid(left, top, cell, mask.shape)
        for number, name in enumerate(columns.split()):
            parts.append(_text(left + cell * (number + 0.5), top - 10, name, "middle"))
        for number, name in enumerate(rows.split()):
            parts.append(_text(left - 8, top + cell * (number + 0.6), name, "end"))
    for row, ids in enumerate(("5 6 7 EOS", "8 9 EOS PAD")):
        for column, name in enumerate(ids.split()):
            is_padding = name == "PAD"
            place = 110 + cell * (column + 0.5), top + cell * (row + 0.6)
            parts.append(_text(*place, name, "middle", INK if is_padding else "#ffffff"))
    return _svg(290, parts)


def draw_attention() -> str:
    """Draws attention weights where queries and keys are positions, without and with the mask."""
    queries = 2 * sinusoid(torch.arange(12), 16)[None, None]
    cell, top = 24, 78
    parts = list[str]()
    for left, causal, title in (
        (90, False, "without a mask (darkest: 0.5 or more)"),
        (460, True, "causal"),
    ):
        weights = attention_weights(queries, queries, None, causal)[0, 0]
        parts += [_text(left, 26, title), _text(left + cell * 6, 56, "key", "middle")]
        parts += _heat_map((2 * weights).clamp(max=1), (left, top), cell)
        parts += _grid(left, top, cell, weights.shape)
        for number in range(0, 12, 2):
            at = cell * (number + 0.5)
            parts.append(_text(left + at, top - 6, str(number), "middle"))
            parts.append(_text(left - 8, top + at + 5, str(number), "end"))
    parts.append(_text(14, top + cell * 6 + 5, "query"))
    return _svg(380, parts)


def draw_rate() -> str:
    """Draws the learning rate of the paper's two models, with 4,000 steps of warm-up."""
    last, highest, left, right, bottom, top = 40_000, 0.0008, 90, 770, 300, 50
    parts = [_text(left, 26, "learning rate of the paper, 4,000 steps of warm-up")]
    for number in range(5):
        y = bottom - (bottom - top) * number / 4
        parts.append(f'<path d="M{left} {y:g}H{right}" stroke="{FAINT}" fill="none"/>')
        parts.append(_text(left - 8, y + 5, f"{highest * number / 4:g}", "end"))
        x, step = left + (right - left) * number / 4, last * number // 4
        parts.append(_text(x, bottom + 22, f"{step:,}", "middle"))
    parts.append(_text((left + right) / 2, bottom + 44, "step", "middle"))
    for d_model, color, name in ((512, BLUE, "base, width 512"), (1024, ORANGE, "big, width 1024")):
        points = []
        for step in (1, *range(200, last + 1, 200)):
            rate = noam_rate(step, d_model, warmup_steps=4000)
            x, y = left + (right - left) * step / last, bottom - (bottom - top) * rate / highest
            points.append(f"{x:.1f} {y:.1f}")
        line = "L".join(points)
        parts.append(f'<path d="M{line}" stroke="{_rgb(color)}" stroke-width="2" fill="none"/>')
        y = 122 if d_model == 512 else 250
        parts.append(_text(left + 130, y, name, color=_rgb(color)))
    return _svg(360, parts)


def _heat_map(
    rows: torch.Tensor, corner: tuple[float, float], cell: int, signed: bool = False
) -> Iterable[str]:
    """Yields a path for each colour of values from 0 to 1, or if signed from -1 to 1."""
    paths = dict[int, list[str]]()
    for y, row in enumerate((rows * LEVELS).round().int().tolist()):
        start = 0
        for x in range(1, len(row) + 1):
            if x == len(row) or row[x] != row[start]:
                place = f"M{corner[0] + start * cell:g} {corner[1] + y * cell:g}"
                path = f"{place}h{(x - start) * cell}v{cell}H{corner[0] + start * cell:g}z"
                paths.setdefault(row[start], []).append(path)
                start = x
    for level, path in sorted(paths.items()):
        color = BLUE if level > 0 or not signed else ORANGE
        share = abs(level) / LEVELS
        mixed = tuple(round(255 + (part - 255) * share) for part in color)
        yield f'<path d="{"".join(path)}" fill="{_rgb(mixed)}"/>'


def _grid(left: float, top: float, cell: int, shape: Sequence[int]) -> Iterable[str]:
    """Yields the lines around the cells of a heat map."""
    height, width = (cell * size for size in shape)
    lines = [f"M{left} {top + cell * row}h{width}" for row in range(shape[0] + 1)]
    lines += [f"M{left + cell * column} {top}v{height}" for column in range(shape[1] + 1)]
    yield f'<path d="{"".join(lines)}" stroke="{FAINT}" fill="none"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", color: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}">{text}</text>'


def _rgb(color: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in color)


def _svg(height: int, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    style = 'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="15"'
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    body = "\n".join((background, *parts))
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def make_files() -> dict[Path, str]:
    """Makes the content of every file that this script writes."""
    before, _, after = PAGE.read_text("utf-8").split(MARK)
    return {
        PAGE: f"{before}{MARK}{make_table()}{MARK}{after}",
        DOCS / "images" / "model-positions.svg": draw_positions(),
        DOCS / "images" / "model-masks.svg": draw_masks(),
        DOCS / "images" / "model-attention.svg": draw_attention(),
        DOCS / "images" / "model-rate.svg": draw_rate(),
    }


if __name__ == "__main__":
    for path, content in make_files().items():
        path.write_text(content, encoding="utf-8")
