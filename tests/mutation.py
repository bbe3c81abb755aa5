"""Mutation testing: changes one line of a module at a time and counts what the tests notice.

    python tests/mutation.py [MODULE ...] [--mutants 20] [--seed 1]

Package and tests are copied to a temporary directory. Each mutant is written there, and the tests
that cover its module run until one fails; a mutant that exceeds the time limit counts as killed.
mutation_equivalents.txt lists mutants that no test can notice. Set TRANSFORMER_MT_COPY_RUN to a
directory to keep the trained run of the tests between calls.
"""

import argparse
import ast
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer_mt"
COPIED = (PACKAGE, "tests", "configs", "data", "pyproject.toml")
EQUIVALENTS = Path(__file__).with_name("mutation_equivalents.txt")
MEMORY_LIMIT = 16 << 30
"""Bytes that the tests of a mutant may allocate."""
GUARANTEE = "test_guarantees.py::test_guarantee_"
COMPARED = "evaluation/test_evaluate.py::test_a_baseline_is_compared_as_sacrebleu_does"
COVERED_BY = {  # module: test files or tests, the quickest first
    "training/loss.py": ["training/test_loss.py"],
    "training/optimizer.py": ["training/test_optimizer.py"],
    "training/time_left.py": ["training/test_time_left.py"],
    "training/engine.py": [
        "training/test_engine.py",
        f"{GUARANTEE}7_a_bad_step_is_skipped_and_counted",
        f"{GUARANTEE}7_gradients_are_unscaled_before_they_are_clipped",
        f"{GUARANTEE}5_micro_batches_do_not_change_the_recipe",
        "training/test_speed_laws.py::test_a_failed_compilation_is_one_line",
    ],
    "training/trainer.py": [
        "training/test_trainer.py",
        "training/test_resume.py",
        f"{GUARANTEE}6_a_save_that_fails_in_the_middle_only_warns",
    ],
    "training/run.py": [
        f"{GUARANTEE}1_another_configuration_is_refused_by_name",
        "training/test_resume.py",
        "training/test_run.py",
    ],
    "text/batching.py": ["text/test_batching.py", "text/test_encoded_pairs.py"],
    "text/corpus.py": ["text/test_corpus.py"],
    "text/hub.py": [
        "text/test_hub.py::test_an_answer_of_any_kind_is_a_hub",
        "text/test_hub.py::test_why_a_hub_is_not_used",
        "text/test_hub.py::test_the_hubs_own_type_for_translations",
        "text/test_side_effects.py",
        "text/test_corpus.py",
        "text/test_hub.py::test_no_hub_and_no_cache",
    ],
    "text/cleaning.py": ["text/test_cleaning.py"],
    "text/prepared.py": ["text/test_prepared_content.py", "text/test_prepared.py"],
    "checkpoints/checkpoint.py": ["checkpoints/test_checkpoint.py"],
    "checkpoints/run_directory.py": ["checkpoints/test_run_directory.py"],
    "checkpoints/state.py": ["checkpoints/test_state.py"],
    "translation/search.py": ["translation/test_search.py"],
    "translation/translator.py": ["translation/test_translator.py"],
    "evaluation/evaluator.py": ["evaluation/test_evaluator.py", "evaluation/test_report.py"],
    "evaluation/perplexity.py": ["evaluation/test_perplexity.py"],
    "evaluation/scoring.py": ["evaluation/test_scoring.py", COMPARED],
    "evaluation/comparison.py": [
        "evaluation/test_evaluate.py::test_buckets_by_source_length",
        "evaluation/test_evaluate.py::test_a_comparison_by_hand",
        COMPARED,
    ],
}
OPERATORS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Pow: ("**", "*"), ast.Mod: ("%", "*"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
NOT_MUTATED = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
"""Messages and invariants."""
KEYWORDS_NOT_MUTATED = ("strict", "device", "non_blocking")
"""They state an invariant, or have no effect on a CPU."""


class Mutant(NamedTuple):
    """One changed line: its number from 1, its text before and after."""

    module: str
    number: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the mutant wherever its line is."""
        return self.module, self.before.strip(), self.after.strip()


class Edit(NamedTuple):
    """Bytes of a line, numbered from 1, and their replacement."""

    number: int
    start: int
    end: int
    text: str


def mutable_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Gives all nodes but those of messages, invariants, annotations and decorators."""
    if isinstance(node, NOT_MUTATED):
        return
    if isinstance(node, ast.keyword) and node.arg in KEYWORDS_NOT_MUTATED:
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from mutable_nodes(child)


def operands(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, ast.AST]]:
    """Gives the left side, right side and operator of each operation of a node."""
    match node:
        case ast.Compare():
            sides = pairwise([node.left, *node.comparators])
            yield from ((*pair, op) for pair, op in zip(sides, node.ops, strict=True))
        case ast.BoolOp():
            yield from ((*pair, node.op) for pair in pairwise(node.values))
        case ast.BinOp():
            yield node.left, node.right, node.op
        case ast.AugAssign():
            yield node.target, node.value, node.op


def operator_edits(node: ast.AST, lines: list[bytes]) -> Iterator[Edit]:
    """Replaces operators."""
    for left, right, operator in operands(node):
        symbol, replacement = OPERATORS.get(type(operator), ("", ""))
        if symbol and left.end_lineno == right.lineno:
            start = lines[right.lineno - 1].find(symbol.encode(), left.end_col_offset)
            if 0 <= start < right.col_offset:
                yield Edit(right.lineno, start, start + len(symbol), replacement)


def changed_expression(node: ast.AST, names: set[str]) -> str | None:
    """Gives another constant, the other of two names, or an expression without its sign."""
    match node:
        case ast.Constant(value=bool()):
            return str(not node.value)
        case ast.Constant(value=int()):
            return str(node.value + 1)
        case ast.Constant(value=float()):
            return str(node.value * 2 or 1.0)
        case ast.Name(id="min" | "max"):
            return {"min": "max", "max": "min"}[node.id]
        case ast.Name(ctx=ast.Load()):
            other = node.id.replace("src", "\0").replace("tgt", "src").replace("\0", "tgt")
            return other if other != node.id and other in names else None
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            return ast.unparse(node.operand)
    return None


def changed_statement(node: ast.AST) -> str | None:
    """Gives a statement that does nothing instead of one with an effect."""
    match node:
        case ast.Return(value=ast.Constant(value=None) | None):
            return None
        case ast.Return():
            return "return None"
        case ast.Break() | ast.Continue() | ast.AugAssign():
            return "pass"
        case ast.Expr(value=ast.Call() | ast.Yield()):
            return "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "pass"
    return None


def edits_of(tree: ast.Module, lines: list[bytes]) -> Iterator[Edit]:
    """Gives all edits of a module, some of which may not be valid Python."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in mutable_nodes(tree):
        yield from operator_edits(node, lines)
        if not hasattr(node, "lineno") or node.lineno != node.end_lineno:
            continue
        for text in (changed_expression(node, names), changed_statement(node)):
            if text is not None:
                yield Edit(node.lineno, node.col_offset, node.end_col_offset, text)
        if isinstance(node, ast.keyword) and node.arg:
            after = lines[node.lineno - 1][node.end_col_offset :]
            comma = len(after) - len(after.lstrip(b", "))
            yield Edit(node.lineno, node.col_offset, node.end_col_offset + comma, "")


def mutants_of(module: str) -> list[Mutant]:
    """Lists every mutant of a module that is a program."""
    source = (ROOT / PACKAGE / module).read_bytes()
    lines, mutants = source.split(b"\n"), {}
    for number, start, end, text in edits_of(ast.parse(source), lines):
        before = lines[number - 1]
        after = before[:start] + text.encode() + before[end:]
        with suppress(SyntaxError):
            compile(b"\n".join([*lines[: number - 1], after, *lines[number:]]), module, "exec")
            mutants[Mutant(module, number, before.decode(), after.decode())] = None
    return list(mutants)


def known_equivalents() -> set[tuple[str, str, str]]:
    """Reads blocks of four lines: [MODULE], original line, mutated line, reason."""
    blocks = [b.split("\n") for b in EQUIVALENTS.read_text().split("\n\n") if b.startswith("[")]
    return {(block[0].strip("[]"), block[1].strip(), block[2].strip()) for block in blocks}


def run_tests(copy: Path, module: str) -> None:
    """Runs the tests of a module in a copy of the repository, and exits."""
    os.setsid()  # so that programs which the tests have started can be killed too
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
    options = ["-x", "-pno:cacheprovider", "-Wignore::pytest.PytestAssertRewriteWarning"]
    options += ["--hypothesis-seed=1", f"--basetemp={copy / 'tmp'}"]
    sys.exit(int(pytest.main([*options, *(f"tests/{test}" for test in COVERED_BY[module])])))


def tests_pass(copy: Path, module: str, seconds: float) -> bool:
    """Tells whether the tests of a module pass in a copy within a time limit."""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(copy, module))
    process.start()
    process.join(seconds)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return process.exitcode == 0


def find_survivors(module: str, mutants: list[Mutant], copy: Path) -> list[Mutant]:
    """Runs the tests of a module on each mutant; gives and prints those that survive."""
    began = time.monotonic()
    if not tests_pass(copy, module, seconds=3600):
        sys.exit(f"{module}: its tests fail unchanged:\n{(copy / 'output.txt').read_text()}")
    limit = 20 + 5 * (time.monotonic() - began)
    path, survivors = copy / PACKAGE / module, []
    source = path.read_text()
    for mutant in mutants:
        lines = source.split("\n")
        lines[mutant.number - 1] = mutant.after
        path.write_text("\n".join(lines))
        if tests_pass(copy, module, limit):
            survivors.append(mutant)
            place = f"{PACKAGE}/{module}:{mutant.number}"
            print(f"{place}: {mutant.before.strip()} -> {mutant.after.strip()}", flush=True)
    path.write_text(source)
    return survivors


def copy_repository(copy: Path) -> None:
    """Copies what the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)


def main() -> None:
    """Tests the mutants of some modules and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="such as text/batching.py")
    parser.add_argument("--mutants", type=int, default=20, help="per module, at most")
    parser.add_argument("--seed", type=int, default=1, help="chooses the mutants")
    arguments = parser.parse_args()
    modules = arguments.modules or list(COVERED_BY)
    if unknown := set(modules) - set(COVERED_BY):
        parser.error(f"no tests are listed for {', '.join(sorted(unknown))}")
    equivalents, table = known_equivalents(), []
    possible = {module: mutants_of(module) for module in COVERED_BY}
    for stale in equivalents - {m.key for mutants in possible.values() for m in mutants}:
        print(f"{EQUIVALENTS.name}: no such mutant: {' | '.join(stale)}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TRANSFORMER_MT_COPY_RUN", f"{folder}/run")
        copy_repository(Path(folder))
        for module in modules:
            mutants = [m for m in possible[module] if m.key not in equivalents]
            random.Random(f"{arguments.seed} {module}").shuffle(mutants)
            mutants = mutants[: arguments.mutants]
            killed = len(mutants) - len(find_survivors(module, mutants, Path(folder)))
            table.append((module, killed, len(mutants)))
            print(f"{module}: {killed} of {len(mutants)} mutants killed", flush=True)
    print("\n| module | killed | mutants | equivalent |\n|---|---|---|---|")
    for module, killed, count in table:
        known = sum(key[0] == module for key in equivalents)
        print(f"| {module} | {killed} | {count} | {known} |")


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.dont_write_bytecode = True  # a mutant may have the time and size of the one before it
    import hypothesis
    import pytest
    import sacrebleu  # noqa: F401 (imported once, for all mutants)
    import torch  # noqa: F401

    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # failures are not minimised
    hypothesis.settings.register_profile("mutation", phases=phases, database=None)
    hypothesis.settings.load_profile("mutation")
    main()
