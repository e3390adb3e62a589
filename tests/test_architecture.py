"""The shape of the code: layers, imports, file sizes, docstrings, and tests beside sources."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "phpq"

# From the ground up. A part may import the parts of lower layers and its own modules; parts of one
# layer do not know each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("_lazy", "_version", "errors", "hits"),
    ("compiling", "config", "files"),
    ("codes", "recipes"),
    ("additive",),
    ("data", "index", "report"),
    ("evaluation", "machine"),
    ("model",),
    ("gallery", "methods"),
    ("audit", "cluster", "explain", "training"),
    ("api", "client"),
    ("compare", "demo", "reproduce", "serve"),
    ("cli",),
    ("__main__",),
)
LAYER_OF = {part: number for number, layer in enumerate(LAYERS) for part in layer}

# These must be usable, testable and fast to import without torch.
WITHOUT_TORCH = (
    "additive",
    "audit",
    "cli",
    "client",
    "cluster",
    "codes",
    "compiling",
    "config",
    "errors",
    "evaluation",
    "explain",
    "files",
    "gallery",
    "index",
    "recipes",
    "report",
    "reproduce",
    "serve",
)

MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST_FILE = 400
LONGEST_FUNCTION = 60


def name_of(path: Path) -> str:
    parts = ("phpq", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """Return "model" for "phpq.model.network", and "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


@functools.cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def imported(tree: ast.AST, *, deep: bool) -> Iterator[str]:
    """Yield what is imported at run time; `deep` includes imports inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "phpq":
                yield from (f"phpq.{alias.name}" for alias in node.names)
        elif deep or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported(node, deep=deep)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_to_lower_layers(path: Path) -> None:
    part = part_of(name_of(path))
    if not part:
        return  # the package itself offers the names of all parts
    assert part in LAYER_OF, f"give {part!r} a place in LAYERS"
    for module in imported(syntax(path), deep=True):
        if module.split(".")[0] != "phpq" or module == "phpq":
            continue
        other = part_of(module)
        assert other == part or LAYER_OF[other] < LAYER_OF[part], f"{part} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_private_modules_are_used_in_their_package_only(path: Path) -> None:
    own = part_of(name_of(path))
    for module in imported(syntax(path), deep=True):
        if module.startswith("phpq.") and any(
            word.startswith("_") for word in module.split(".")[2:]
        ):
            assert part_of(module) == own, f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_are_absolute_and_explicit(path: Path) -> None:
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert all(alias.name != "*" for alias in node.names), f"line {node.lineno}: a star"


def test_no_part_reaches_torch_before_it_is_needed() -> None:
    """Follow imports at module level from part to part."""
    graph = {name_of(path): set(imported(syntax(path), deep=False)) for path in MODULES}
    for module in graph:
        # Importing a module runs the packages above it.
        graph[module] |= {module.rpartition(".")[0]} - {""}

    def closure(start: str) -> set[str]:
        seen, waiting = set(), [start]
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += sorted(graph.get(module, ()))
        return seen

    heavy = ("torch", "torchvision", "timm", "safetensors")
    for module in graph:
        if part_of(module) in (*WITHOUT_TORCH, ""):
            reached = {name for name in closure(module) if name.split(".")[0] in heavy}
            assert not reached, f"{module} imports {sorted(reached)}"


@pytest.mark.parametrize("module", ["phpq", "phpq.codes", "phpq.index", "phpq.evaluation"])
def test_torch_is_not_loaded_by_accident(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_and_functions_are_short_and_say_what_they_do(path: Path) -> None:
    tree, lines = syntax(path), len(path.read_text("utf-8").splitlines())
    assert lines <= LONGEST_FILE
    assert ast.get_docstring(tree)
    for node in functions(tree):
        body = statements(node)
        # The signature and the docstring do not count: a command has as many options as it has.
        if body:
            assert (node.end_lineno or 0) - body[0].lineno < LONGEST_FUNCTION, node.name


def functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """Return the body without docstring and ellipsis: nothing, for what only declares."""
    return [
        node
        for node in function.body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def has_logic(path: Path) -> bool:
    return any(statements(function) for function in functions(syntax(path)))


@pytest.mark.parametrize("path", [path for path in MODULES if has_logic(path)], ids=name_of)
def test_every_module_has_its_tests(path: Path) -> None:
    folder = ROOT / "tests" / path.relative_to(SOURCE).parent
    name = path.stem.removeprefix("_")
    if path.stem == "__init__":  # a package's own door: tests/cli/test_cli.py
        name = path.parent.name if path.parent != SOURCE else "public_api"
    assert (folder / f"test_{name}.py").is_file()


def test_no_drawer_for_everything() -> None:
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert not [path for path in MODULES if vague & {*path.parts, path.stem}]


def test_nothing_is_pickled() -> None:
    for path in MODULES:
        modules = set(imported(syntax(path), deep=True))
        assert not modules & {"pickle", "dill", "joblib", "shelve", "marshal"}, path
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert options.get("weights_only") == "True", path
