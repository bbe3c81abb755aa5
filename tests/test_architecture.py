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
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts): p for p in FILES}
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


def test_contributing_lists_every_module():
    """In the folder that it is in. Sabotage: delete a line of the list."""
    tree = (PACKAGE.parent / "CONTRIBUTING.md").read_text("utf-8").split("```")[1]
    listed, folder = [], ""
    for indent, name in re.findall(r"^( {4}| {8})(\w+(?:/|\.py))", tree, re.MULTILINE):
        folder = folder if len(indent) == 8 else name if name.endswith("/") else ""
        listed += [folder + name] if name.endswith(".py") else []
    modules = (path.relative_to(PACKAGE).as_posix() for path in FILES)
    assert sorted(listed) == sorted(x for x in modules if not x.endswith("/__init__.py"))


def test_imports_follow_the_order():
    """From packages before one's own; inside a package without cycles."""
    graph = {name: imported_modules(source) for name, source in SOURCES.items()}
    for module, imported in graph.items():
        package = package_of(module)
        before = ORDER[: ORDER.index(package)] if package in ORDER else ()
        above = {name for name in imported if package_of(name) not in {*ANYWHERE, package, *before}}
        assert package in TOP or not above, f"{module} must not import {above}"
    list(TopologicalSorter(graph).static_order())


def test_private_torch_api_stays_in_one_module():
    """What ruff's SLF001, which forbids private attributes, overlooks, and undocumented names."""
    imports = r"from torch\b.*\b_[a-z].*|import torch\..*\b_[a-z].*"
    others = r"(?:get|has)attr\(.*[\"']_[a-z].*|torch\.ops|found_inf"
    found = {name for name, text in SOURCES.items() if re.search(f"{imports}|{others}", text)}
    assert found == {"transformer_mt.system.private_torch"}


def test_files_and_functions_are_short():
    """No file over 400 lines, no function over 50, no body of a command over 30."""
    for module, source in SOURCES.items():
        assert len(source.splitlines()) <= 400, module
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef):
                continue
            first, limit = node, 50
            if package_of(module + ".") == "cli":
                first, limit = (node.body[1:] or node.body)[0], 30
            lines = (node.end_lineno or 0) - first.lineno + 1
            assert lines <= limit, f"{module}.{node.name} has {lines} lines"


def test_public_functions_have_names_of_their_own():
    """But for commands and the API, which are named as what they call."""
    places: dict[str, list[str]] = {}
    for module, source in SOURCES.items():
        if package_of(module) in TOP | {"cli"} or module.endswith("__main__"):
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


BORN_IN_A_LIBRARY = {("StepDisplay", "total")}
"""Attributes that a base class makes, here tqdm."""


def test_attributes_are_born_in_init():
    """Or declared in the body of the class, as fields of dataclasses are."""
    for source in SOURCES.values():
        for owner in ast.walk(ast.parse(source)):
            if not isinstance(owner, ast.ClassDef):
                continue
            born = {name for node in owner.body for name in stored_names(node)}
            for method in owner.body:
                if isinstance(method, ast.FunctionDef):
                    added = {(owner.name, name) for name in attributes_of_self(method) - born}
                    assert method.name == "__init__" or added <= BORN_IN_A_LIBRARY, added


def stored_names(node: ast.stmt) -> set[str]:
    """Names what a statement of a class gives its instances: fields, properties, all of init."""
    if isinstance(node, ast.FunctionDef):
        return attributes_of_self(node) if node.name == "__init__" else {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def attributes_of_self(method: ast.FunctionDef) -> set[str]:
    """Names the attributes of its object that a method sets."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
    }
