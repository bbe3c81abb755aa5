"""The packages: a package imports only from packages before it, and files stay readable."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "transformer_mt"
ORDER = ("config system text model checkpoints translation evaluation training figures cli").split()
"""A package may import from itself and from packages that stand before it."""
ANYWHERE = {"errors", "version"}
"""Modules that every package may import."""
TOP = {"__init__", "__main__"}
"""Modules above all packages."""
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


SOURCES = {module: path.read_text() for module, path in MODULES.items()}


def imported_modules(source: str) -> set[str]:
    """Names the modules of this package that a source imports, inside functions too."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "write absolute imports"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name if name in MODULES else str(node.module) for name in names}
    return {name for name in modules if name.split(".")[0] == "transformer_mt"}


def package_of(module: str) -> str:
    """Gives the package of a module, or the module's own name if it is in none."""
    return module.split(".")[1] if "." in module else "__init__"


def test_every_package_has_its_place():
    """No package is empty, missing from the order, or a catch-all."""
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(ORDER)
    for package in ORDER:
        assert len(list((PACKAGE / package).glob("*.py"))) > 1
    assert not {"utils", "helpers", "common"} & {path.stem for path in MODULES.values()}


def test_imports_follow_the_order():
    """From packages before one's own; inside a package without cycles."""
    graph = {name: imported_modules(source) for name, source in SOURCES.items()}
    for module, imported in graph.items():
        package = package_of(module)
        before = ORDER[: ORDER.index(package)] if package in ORDER else ()
        above = {name for name in imported if package_of(name) not in {*ANYWHERE, package, *before}}
        assert package in TOP or not above, f"{module} must not import {above}"
    list(TopologicalSorter(graph).static_order())


PRIVATE_TORCH = "transformer_mt.system.private_torch"


def test_private_torch_api_stays_in_one_module():
    """What ruff's SLF001, which forbids private attributes, overlooks, and undocumented names."""
    imports = r"from torch\b.*\b_[a-z].*|import torch\..*\b_[a-z].*"
    others = r"(?:get|has)attr\(.*[\"']_[a-z].*|torch\.ops|found_inf"
    found = {name for name, text in SOURCES.items() if re.search(f"{imports}|{others}", text)}
    assert found == {PRIVATE_TORCH}


def test_files_and_functions_are_short():
    """No file over 400 lines, no function over 50, no body of a command over 30."""
    for module, source in SOURCES.items():
        assert len(source.splitlines()) <= 400, module
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first, *rest = node.body
            body = rest if ast.get_docstring(node) and rest else node.body
            in_body = (node.end_lineno or 0) - body[0].lineno + 1
            docstring = (first.end_lineno or 0) - first.lineno + 1 if body is rest else 0
            lines = (node.end_lineno or 0) - node.lineno + 1 - docstring
            assert lines <= 50, f"{node.name} has {lines} lines"
            if package_of(module + ".") == "cli":
                assert in_body <= 30, f"the body of {node.name} has {in_body} lines"
