"""A hundred thousand lines come back as they went in; a million need no more memory than a few."""

import os
import random
import subprocess
from pathlib import Path

import pytest
from conftest import NASTY, command, run_program, tiny_config

from transformer_mt.training.run import train

pytestmark = pytest.mark.slow

WORDS = [first + second for first in "bcdfgk" for second in "aeiou"]


def random_lines(count: int, seed: int) -> list[str]:
    """Makes lines of one to eight different words."""
    rng = random.Random(seed)
    return [" ".join(rng.sample(WORDS, rng.randint(1, 8))) for _ in range(count)]


@pytest.fixture(scope="module")
def copier(tmp_path_factory) -> Path:
    """Gives a run that copies lines, almost without a slip: words, none twice in a line."""
    folder = tmp_path_factory.mktemp("copier")
    (folder / "corpus").mkdir()
    for split, count in (("train", 20_000), ("validation", 60)):
        for language in ("de", "en"):
            text = "".join(f"{line}\n" for line in random_lines(count, count))
            (folder / "corpus" / f"{split}.{language}").write_text(text)
    config = tiny_config(
        folder / "corpus",
        vocab__kind="word",
        vocab__size=40,
        data__max_length=12,
        model__dropout=0.0,
        optim__label_smoothing=0.0,
        optim__warmup_steps=150,
        train__batch_tokens=2000,
        train__micro_batch_tokens=4000,
        train__max_steps=800,
        train__save_every=800,
        train__ema_decay=0.99,  # a steadier hand than the last step's
        train__log_every=200,
        valid__every=800,
    )
    train(config, folder / "run")
    return folder / "run"


def test_a_hundred_thousand_lines(copier, tmp_path):
    """Order and content equal, empty lines empty, as a pipe and as files, nasty lines between.

    A model trained elsewhere may err in a word or two of half a million: such a line must be what
    it makes of the line alone.

    Sabotage: not restoring the order; `splitlines()`; skipping empty lines.
    """
    rng, lines = random.Random(1), [line.encode() for line in random_lines(100_000, 2)]
    for place in sorted(rng.sample(range(len(lines)), 5_000), reverse=True):
        lines.insert(place, rng.choice(NASTY))
    (tmp_path / "in").write_bytes(b"\n".join(lines))  # no final line break
    with (tmp_path / "in").open("rb") as source:
        arguments = command("translate", copier, "--quiet")
        done = subprocess.run(arguments, stdin=source, capture_output=True, check=True)
    got = done.stdout.split(b"\n")
    assert got.pop() == b"" and len(got) == len(lines)
    nasty = set(NASTY)
    slips = [a for a in zip(lines, got, strict=True) if a[0] not in nasty and a[0] != a[1]]
    assert len(slips) <= 5
    for line, text in slips:
        assert run_program("translate", copier, stdin=line).stdout == text + b"\n"
        assert len(line.split()) == len(text.split())
    assert all(not text for line, text in zip(lines, got, strict=True) if not line.strip())
    files = "--input", tmp_path / "in", "--output", tmp_path / "out"
    subprocess.run(command("translate", copier, "--quiet", *files), check=True)
    assert (tmp_path / "out").read_bytes() == done.stdout


def peak_memory(copier: Path, source: Path) -> int:
    """Translates a file; gives the largest resident set of the process, in kilobytes."""
    files = "--input", source, "--output", source.with_name("out")
    process = subprocess.Popen(command("translate", copier, "--quiet", *files))
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


def test_memory_stays_flat(copier, tmp_path):
    """Within a fifth between ten thousand lines and a million. Sabotage: read all lines first."""
    lines = random_lines(10_000, 3)
    (tmp_path / "few").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "many").write_text("".join(f"{line}\n" for line in lines) * 100)
    few, many = (peak_memory(copier, tmp_path / name) for name in ("few", "many"))
    assert (tmp_path / "out").read_text().count("\n") == 1_000_000
    print(f"10,000 lines: {few / 1024:.0f} MiB; 1,000,000 lines: {many / 1024:.0f} MiB")
    assert many < 1.2 * few
