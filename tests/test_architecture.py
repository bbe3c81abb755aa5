"""The house: a module imports only from strictly lower floors."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "transformer_mt"
FLOORS = {
    "__init__": 0,
    "dropout": 0,
    "errors": 0,
    "linear": 0,
    "attention": 1,
    "config": 1,
    "device": 1,
    "locks": 1,
    "manifest": 1,
    "run_log": 1,
    "streams": 1,
    "batching": 2,
    "decoding": 2,
    "loss": 2,
    "model": 2,
    "optim": 2,
    "scoring": 2,
    "throughput": 2,
    "vocab": 2,
    "corpus": 3,
    "ensemble": 3,
    "learner": 3,
    "pairs": 4,
    "checkpoint": 4,
    "comparison": 4,
    "testsets": 4,
    "translator": 4,
    "averaging": 5,
    "evaluator": 5,
    "export": 5,
    "loading": 5,
    "prepared": 5,
    "trainer": 6,
    "run": 7,
    "cli": 8,
    "__main__": 9,
}


def imported_rooms(source: str) -> set[str]:
    """Names the modules of this package that a source imports, inside functions too."""
    rooms = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write absolute imports"
            names = [node.module or ""]
            if node.module == "transformer_mt":
                modules = [a.name for a in node.names if a.name in FLOORS]
                names = [f"transformer_mt.{name}" for name in modules] or [
                    "transformer_mt.__init__"
                ]
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("transformer_mt.")}
    return rooms


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_imports_go_down(path):
    """Sabotage that fails it: `from transformer_mt.trainer import train` in translator.py."""
    floor = FLOORS[path.stem]
    above = {room for room in imported_rooms(path.read_text()) if FLOORS[room] >= floor}
    assert not above, f"{path.name} imports {above} from its own floor or above"


def test_imports_inside_functions_count():
    """The parser sees what a function imports."""
    source = "def f():\n    from transformer_mt.cli import main\n    import transformer_mt.loss\n"
    assert imported_rooms(source) == {"cli", "loss"}


def code_lines(source: str) -> int:
    """Counts lines that hold code: no blank ones, comments or docstrings."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def test_no_file_is_too_long_to_read():
    """No file over 400 lines, the package within 3,500 lines of code."""
    sources = {path.name: path.read_text() for path in PACKAGE.glob("*.py")}
    assert max(len(source.splitlines()) for source in sources.values()) <= 400
    assert sum(map(code_lines, sources.values())) <= 3500
    assert code_lines('"""Doc\nstring."""\n\n# why\nx = 1\ny = (\n    2\n)\n') == 4
