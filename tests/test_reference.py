"""docs/reference.md is what its script makes."""

import re
import runpy
from pathlib import Path

from transformer_mt.cli.figures import plot
from transformer_mt.cli.program import app
from transformer_mt.config.keys import DEFAULTS
from transformer_mt.config.reference import list_sections

SCRIPT = Path(__file__).parents[1] / "docs" / "make_reference.py"


def test_the_reference_is_current():
    """Sabotage: change a default, a docstring of a key, or the help of an option."""
    script = runpy.run_path(str(SCRIPT))
    committed = script["REFERENCE"].read_text(encoding="utf-8")
    assert committed == script["render"](), "run `make reference`"
    assert all(key.meaning for _, _, keys in list_sections() for key in keys)
    assert re.findall(r"^\| `(\w+\.\w+)` \|", committed, re.MULTILINE) == list(DEFAULTS)
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    plots = [f"plot {command.callback.__name__}" for command in plot.registered_commands]
    headings = re.findall(r"^### transformer-mt (.+)$", committed, re.MULTILINE)
    assert headings == [*commands, "plot", *plots]
    for line in committed.splitlines():
        assert not re.search(r"\| +\|", line), f"an empty cell: {line}"
