"""The sample corpus is what data/README.md says."""

import re
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def sample() -> dict[tuple[str, str], list[str]]:
    """Gives the lines of each file, by split and language."""
    return {
        (split, language): (DATA / "sample" / f"{split}.{language}").read_text("utf-8").split("\n")
        for split in SPLITS
        for language in ("de", "en")
    }


def test_files_are_aligned_and_of_the_sizes_in_the_readme(sample):
    """One sentence per line; sentences and words are counted."""
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    for split in SPLITS:
        counts = []
        for language in ("de", "en"):
            *lines, end = sample[split, language]
            assert not end and all(re.fullmatch(r"[A-ZÄÖÜ][\w', ]*\w[.?]", line) for line in lines)
            counts += [len(lines), sum(len(line.split()) for line in lines)]
        assert counts[0] == counts[2]
        assert f"| `{split}` | {counts[0]:,} | {counts[1]:,} | {counts[3]:,} |" in readme


def test_no_sentence_is_in_two_splits(sample):
    """No source twice in the corpus, and no held-out translation in training."""
    sources = [line for split in SPLITS for line in sample[split, "de"][:-1]]
    assert len(set(sources)) == len(sources)
    targets = [set(sample[split, "en"][:-1]) for split in SPLITS]
    assert len(set.union(*targets)) == sum(map(len, targets))
