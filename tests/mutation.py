"""Mutation testing: changes one line of a module at a time and counts what the tests notice.

    python tests/mutation.py [MODULE ...] [--mutants 20] [--seed 1] [--jobs 1]

The package and the tests are copied to a temporary directory, each mutant is written there, and
only the tests that cover its module run, the quickest first, until one fails. Known equivalents
stand in mutation_equivalents.txt beside this file. A mutant that outlives the time limit counts
as killed. Set TRANSFORMER_MT_COPY_RUN to a directory to keep the trained run between calls.
"""

import argparse
import ast
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("transformer_mt", "tests", "configs", "data", "pyproject.toml")
EQUIVALENTS = Path(__file__).with_name("mutation_equivalents.txt")
PACKAGE, TESTS = "transformer_mt/", "tests/"
PROMISES = "test_promises.py::test_promise_"
COVERED_BY = {  # module: test files or tests, quickest first
    "loss.py": ["test_loss.py"],
    "optim.py": ["test_optim.py"],
    "batching.py": ["test_batching.py", "test_pairs.py"],
    "decoding.py": ["test_decoding.py"],
    "translator.py": ["test_translator.py", "test_translate.py"],
    "evaluator.py": ["test_evaluator.py", f"{PROMISES}4_one_bleu"],
    "scoring.py": [
        "test_scoring.py",
        "test_evaluate.py::test_a_baseline_is_compared_as_sacrebleu_does",
    ],
    "comparison.py": [
        "test_evaluate.py::test_a_comparison_by_hand",
        "test_evaluate.py::test_a_baseline_is_compared_as_sacrebleu_does",
    ],
    "corpus.py": [
        "test_corpus.py",
        "test_hub.py::test_no_hub_and_no_cache",
        "test_hub.py::test_a_corpus_the_hub_has_not",
    ],
    "prepared.py": ["test_prepared.py"],
    "checkpoint.py": [
        "test_checkpoint.py",
        "test_run.py",
        f"{PROMISES}2_a_checkpoint_stands_alone_and_holds_no_pickle",
        f"{PROMISES}2_damage_is_named_and_the_checkpoint_before_is_used",
        "reliability/test_damage.py",
    ],
    "trainer.py": [
        "test_trainer.py",
        f"{PROMISES}7_too_many_bad_steps_stop_the_run",
        f"{PROMISES}6_a_save_that_fails_in_the_middle_only_warns",
        "test_run.py",
        "test_throughput.py",
        f"{PROMISES}6_an_interrupted_run_saves_and_says_so",
    ],
    "run.py": ["test_run.py", f"{PROMISES}1_another_configuration_is_refused_by_name"],
    "learner.py": [
        f"{PROMISES}5_micro_batches_do_not_change_the_recipe",
        f"{PROMISES}7_a_bad_step_is_skipped_and_counted",
        f"{PROMISES}7_gradients_are_unscaled_before_they_are_clipped",
        "test_run.py",
        "test_throughput.py",
    ],
}
SYMBOLS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Pow: ("**", "*"), ast.Mod: ("%", "*"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
WORDS = {"min": "max", "max": "min", "break": "pass", "continue": "pass"}


UNSEEN = ("strict", "device", "non_blocking")
"""Keyword arguments that state an invariant or do nothing on a CPU; they are not mutated."""


class Mutant(NamedTuple):
    """One changed line: its number from 1, its text before and after."""

    module: str
    number: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Names the mutant wherever its line stands."""
        return self.module, self.before.strip(), self.after.strip()


def changes(tree: ast.Module, lines: list[bytes]) -> Iterator[tuple[int, int, int, str]]:
    """Gives line, first column, end column and the text to put there, for each possible mutant."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    def whole(node: ast.AST, text: str) -> Iterator[tuple[int, int, int, str]]:
        if node.lineno == node.end_lineno:
            yield node.lineno, node.col_offset, node.end_col_offset, text

    def between(left: ast.AST, right: ast.AST, kind: ast.AST) -> Iterator:
        if left.end_lineno == right.lineno and type(kind) in SYMBOLS:
            symbol, other = SYMBOLS[type(kind)]
            start = lines[right.lineno - 1].find(symbol.encode(), left.end_col_offset)
            if 0 <= start < right.col_offset:
                yield right.lineno, start, start + len(symbol), other

    def visit(node: ast.AST) -> Iterator[tuple[int, int, int, str]]:
        skipped: list[ast.AST] = []
        match node:
            case ast.Raise() | ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
                return  # messages, invariants
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                return
            case ast.Assign(targets=[ast.Name("__all__")]):
                return
            case ast.FunctionDef() | ast.ClassDef():
                skipped += node.decorator_list
                skipped += [node.returns] if isinstance(node, ast.FunctionDef) else []
            case ast.arg() | ast.AnnAssign():
                skipped.append(node.annotation)
            case ast.Compare():
                terms = [node.left, *node.comparators]
                for left, right, kind in zip(terms, terms[1:], node.ops, strict=False):
                    yield from between(left, right, kind)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from between(left, right, node.op)
            case ast.BinOp() if not isinstance(node.left, ast.Constant | ast.JoinedStr) or (
                not isinstance(node.left, ast.JoinedStr) and not isinstance(node.left.value, str)
            ):
                yield from between(node.left, node.right, node.op)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
                if node.lineno == node.operand.lineno:
                    yield node.lineno, node.col_offset, node.operand.col_offset, ""
            case ast.Constant(value=bool()):
                yield from whole(node, str(not node.value))
            case ast.Constant(value=int()):
                yield from whole(node, str(node.value + 1))
            case ast.Constant(value=float()):
                yield from whole(node, str(node.value * 2 or 1.0))
            case ast.Name(ctx=ast.Load()) if node.id in WORDS:
                yield from whole(node, WORDS[node.id])
            case ast.Name(ctx=ast.Load()):
                other = {"src": "tgt", "tgt": "src"}
                swapped = re.sub("src|tgt", lambda match: other[match[0]], node.id)
                if swapped != node.id and swapped in names:
                    yield from whole(node, swapped)
            case ast.Return(value=ast.expr()) if not (
                isinstance(node.value, ast.Constant) and node.value.value is None
            ):
                yield from whole(node, "return None")
            case ast.Break() | ast.Continue():
                yield from whole(node, "pass")
            case ast.AugAssign():
                yield from between(node.target, node.value, node.op)
                yield from whole(node, "pass")
            case ast.Expr(value=ast.Call() | ast.Yield()):
                yield from whole(node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield from whole(node, "pass")
            case ast.Call():
                for word in node.keywords:
                    if word.arg in UNSEEN:
                        skipped.append(word)
                    elif word.arg and word.lineno == word.end_lineno:
                        line = lines[word.lineno - 1]
                        comma = re.match(rb"\s*,?\s*", line[word.end_col_offset :]).end()
                        yield word.lineno, word.col_offset, word.end_col_offset + comma, ""
        for child in ast.iter_child_nodes(node):
            if child not in skipped:
                yield from visit(child)

    yield from visit(tree)


def mutants_of(module: str) -> list[Mutant]:
    """Lists every mutant of a module that is a program."""
    source = (ROOT / PACKAGE / module).read_bytes()
    lines, found = source.split(b"\n"), {}
    for number, start, end, text in changes(ast.parse(source), lines):
        before = lines[number - 1]
        after = before[:start] + text.encode() + before[end:]
        try:
            compile(b"\n".join([*lines[: number - 1], after, *lines[number:]]), module, "exec")
        except SyntaxError:
            continue
        found[Mutant(module, number, before.decode(), after.decode())] = None
    return list(found)


def known_equivalents() -> set[tuple[str, str, str]]:
    """Reads MODULE, original line, mutated line and the reason, each line four of them."""
    blocks = [b.split("\n") for b in EQUIVALENTS.read_text().split("\n\n") if b.startswith("[")]
    return {(block[0].strip("[]"), block[1].strip(), block[2].strip()) for block in blocks}


def start_tests(copy: Path, module: str) -> int:
    """Forks a process that runs the tests of a module in a copy; gives its id."""
    if child := os.fork():
        return child
    code = 99
    try:
        os.setsid()  # so that a time limit ends the programs the tests have started too
        resource.setrlimit(resource.RLIMIT_DATA, (16 << 30, 16 << 30))
        output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
        wanted = [TESTS + path for path in COVERED_BY[module]]
        options = ["-x", "-pno:cacheprovider", "-Wignore::pytest.PytestAssertRewriteWarning"]
        options += ["--hypothesis-seed=1", f"--basetemp={copy / 'tmp'}"]
        code = int(pytest.main([*options, *wanted]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(running: dict[int, tuple[Path, Mutant | None, float]]) -> tuple[int, int]:
    """Waits for one of the processes; gives its id and exit code, 98 if it ran out of time."""
    while True:
        for child, (_, _, deadline) in running.items():
            finished, status = os.waitpid(child, os.WNOHANG)
            if finished:
                return child, os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return child, 98
        time.sleep(0.02)


def require_passing(copy: Path, module: str) -> float:
    """Runs the tests on the unmutated tree; gives the seconds they take."""
    while True:
        trained, began = (
            any(Path(os.environ["TRANSFORMER_MT_COPY_RUN"]).iterdir()),
            time.monotonic(),
        )
        _, code = wait({start_tests(copy, module): (copy, None, began + 1800)})
        if code:
            sys.exit(
                f"{module}: its tests fail without a mutant:\n{(copy / 'output.txt').read_text()}"
            )
        if trained == any(Path(os.environ["TRANSFORMER_MT_COPY_RUN"]).iterdir()):
            return time.monotonic() - began


def try_mutants(module: str, chosen: list[Mutant], copies: list[Path]) -> list[Mutant]:
    """Runs the tests of a module on each mutant; gives those that survive."""
    limit = 5 * require_passing(copies[0], module) + 20
    source = (ROOT / PACKAGE / module).read_text()
    lines, queue, free = source.split("\n"), list(chosen), list(copies)
    running: dict[int, tuple[Path, Mutant | None, float]] = {}
    survivors = []
    while queue or running:
        if queue and free:
            mutant, copy = queue.pop(0), free.pop()
            mutated = [*lines[: mutant.number - 1], mutant.after, *lines[mutant.number :]]
            (copy / PACKAGE / module).write_text("\n".join(mutated))
            running[start_tests(copy, module)] = copy, mutant, time.monotonic() + limit
            continue
        child, code = wait(running)
        copy, mutant, _ = running.pop(child)
        (copy / PACKAGE / module).write_text(source)
        free.append(copy)
        if code == 0:
            survivors.append(mutant)
            place = f"{PACKAGE}{module}:{mutant.number}"
            print(f"{place}: {mutant.before.strip()} -> {mutant.after.strip()}", flush=True)
    return survivors


def main() -> None:
    """Tests the modules that were asked for and prints the score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=", ".join(COVERED_BY))
    parser.add_argument("--mutants", type=int, default=20, help="of each module, at most")
    parser.add_argument("--seed", type=int, default=1, help="decides which")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested at once")
    arguments = parser.parse_args()
    wanted = [Path(PACKAGE, m).relative_to(PACKAGE).as_posix() for m in arguments.modules]
    wanted = [m if m.endswith(".py") else f"{m}.py" for m in wanted] or list(COVERED_BY)
    if unknown := set(wanted) - set(COVERED_BY):
        parser.error(f"no tests are listed for {', '.join(sorted(unknown))}")
    equivalents, scores = known_equivalents(), {}
    possible = {module: mutants_of(module) for module in COVERED_BY}
    for stale in equivalents - {mutant.key for some in possible.values() for mutant in some}:
        print(f"{EQUIVALENTS.name}: no such mutant: {' | '.join(stale)}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TRANSFORMER_MT_COPY_RUN", f"{folder}/run")
        Path(os.environ["TRANSFORMER_MT_COPY_RUN"]).mkdir(exist_ok=True)
        copies = [Path(folder, f"copy{number}") for number in range(arguments.jobs)]
        for copy in copies:
            copy.mkdir()
            for name in COPIED:
                put = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
                put(ROOT / name, copy / name)
            for cache in list(copy.rglob("__pycache__")):
                shutil.rmtree(cache)
        for module in wanted:
            random.Random(f"{arguments.seed} {module}").shuffle(possible[module])
            others = [m for m in possible[module] if m.key not in equivalents]
            chosen = others[: arguments.mutants]
            survivors = try_mutants(module, chosen, copies)
            scores[module] = len(chosen) - len(survivors), len(chosen), len(others)
    print(f"\n{'module':24}{'killed':>8}{'tested':>8}{'possible':>10}")
    scores["total"] = tuple(map(sum, zip(*scores.values(), strict=True)))
    for module, (killed, tested, possible) in scores.items():
        print(f"{module:24}{killed:8}{tested:8}{possible:10}{killed / max(tested, 1):8.0%}")


if __name__ == "__main__":
    os.environ.update(PYTHONDONTWRITEBYTECODE="1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.dont_write_bytecode = True  # a mutant may be as old and as long as the one before it
    import hypothesis
    import pytest
    import sacrebleu  # noqa: F401 (imported once, for all mutants)
    import torch  # noqa: F401

    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # no failure is made smaller
    hypothesis.settings.register_profile("mutation", phases=phases, database=None)
    hypothesis.settings.load_profile("mutation")
    main()
