"""The sample corpus is what data/README.md says."""

import re
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
SPLITS = ("train", "validation", "test")


def test_the_sizes_are_those_of_the_readme_and_no_sentence_is_in_two_splits():
    """One sentence per line; no source stands twice, and no held-out translation in training."""
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    sources, targets = [], []
    for split in SPLITS:
        counts = []
        for language in ("de", "en"):
            text = (DATA / "sample" / f"{split}.{language}").read_text("utf-8")
            *lines, end = text.split("\n")
            assert not end and all(re.fullmatch(r"[A-ZÄÖÜ][\w', ]*\w[.?]", line) for line in lines)
            counts += [len(lines), sum(len(line.split()) for line in lines)]
            if language == "de":
                sources += lines
            else:
                targets.append(set(lines))
        assert counts[0] == counts[2]
        assert f"| `{split}` | {counts[0]:,} | {counts[1]:,} | {counts[3]:,} |" in readme
    assert len(set(sources)) == len(sources)
    assert len(set.union(*targets)) == sum(map(len, targets))
