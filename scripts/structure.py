#!/usr/bin/env python3
"""Measure how a package is cut: `scripts/structure.py [FOLDER]` prints sizes, comments, `Any`, cycles and front doors.

`tests/test_layers.py` holds the package to the import rules with the same functions.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NESTING = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match, ast.AsyncFor, ast.AsyncWith)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
EXEMPT_TOP = {"__init__.py", "__main__.py"}


@dataclass
class Module:
    """One source file, parsed once."""

    name: str
    """Dotted; a package's `__init__.py` has the package's name."""
    path: Path
    source: str
    tree: ast.Module
    imports: set[str] = field(default_factory=set)
    """Dotted names of modules of the same package that it imports, also inside functions and `TYPE_CHECKING`."""

    @property
    def lines(self) -> int:
        return self.source.count("\n")

    @property
    def is_front(self) -> bool:
        return self.path.name == "__init__.py"


def read_package(root: Path) -> dict[str, Module]:
    """All modules under the package folder `root`, by dotted name, with their imports resolved to modules."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path, source, ast.parse(source))
    for module in modules.values():
        module.imports = set(_imports(module, modules))
    return modules


def _imports(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in modules:
                    yield inner
                elif base in modules:
                    yield base


def _base(node: ast.ImportFrom, module: Module) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - node.level + (1 if module.is_front else 0)]
    return ".".join([*kept, node.module] if node.module else kept)


def definitions(module: Module, modules: dict[str, Module]) -> set[str]:
    """The modules of the package that define what `module` imports, also where it imports from a front door."""
    found = set()
    for name in module.imports:
        asked = _names_from(module, name) if modules[name].is_front else set()
        for node in ast.walk(modules[name].tree) if asked else ():
            if isinstance(node, ast.ImportFrom) and node.module in modules and asked & _names_of(node):
                asked -= _names_of(node)
                found.add(node.module)
        if asked or not modules[name].is_front:
            found.add(name)
    return found


def _names_from(module: Module, front: str) -> set[str]:
    """The names that `module` imports from the package `front`."""
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom)]
    return {name for node in nodes if _base(node, module) == front for name in _names_of(node)}


def _names_of(node: ast.ImportFrom) -> set[str]:
    return {alias.name for alias in node.names}


def past_front_doors(modules: dict[str, Module]) -> set[tuple[str, str]]:
    """(importer, imported): the imported module lies in a package that the importer is not in, and is no `__init__`."""
    return {
        (module.name, name)
        for module in modules.values()
        for name in module.imports
        if not modules[name].is_front and not f"{module.name}.".startswith(f"{name.rpartition('.')[0]}.")
    }


def cycles(modules: dict[str, Module]) -> list[list[str]]:
    """Groups of modules that import one another: strongly connected components, largest first (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(root: str) -> None:
        work = [(root, iter(sorted(modules[root].imports)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            name, names = work[-1]
            step = next((one for one in names if one != name and (one not in index or one in stack)), None)
            if step is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    at = stack.index(name)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
            elif step in index:
                low[name] = min(low[name], index[step])
            else:
                index[step] = low[step] = len(index)
                stack.append(step)
                work.append((step, iter(sorted(modules[step].imports))))

    for name in sorted(modules):
        if name not in index:
            visit(name)
    return sorted(found, key=lambda group: (-len(group), group))


@dataclass
class Sizes:
    lines: int = 0
    import_lines: int = 0
    docstring_lines: int = 0
    comment_lines: int = 0
    anys: int = 0
    blanket: int = 0
    classes: int = 0
    data_classes: int = 0
    functions: list[tuple[int, str]] = field(default_factory=list)
    """(lines without the docstring, place)."""
    nesting: list[tuple[int, str]] = field(default_factory=list)


def sizes(modules: Iterable[Module]) -> Sizes:
    total = Sizes()
    for module in modules:
        total.lines += module.lines
        total.comment_lines += _comment_lines(module.source)
        total.anys += len(re.findall(r"\bAny\b", module.source))
        for node in ast.walk(module.tree):
            _count(node, module, total)
    return total


def _count(node: ast.AST, module: Module, total: Sizes) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        total.import_lines += _length(node)
    elif isinstance(node, ast.ExceptHandler) and _is_blanket(node.type):
        total.blanket += 1
    elif isinstance(node, FUNCTIONS):
        place = f"{module.name}:{node.lineno} {node.name}"
        total.functions.append((_length(node) - _docstring(node), place))
        total.nesting.append((_depth(node), place))
    elif isinstance(node, ast.ClassDef):
        total.classes += 1
        total.data_classes += _is_data_only(node)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        total.docstring_lines += _strings(node)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return _length(node.body[0]) if ast.get_docstring(node, clean=False) is not None else 0


def _strings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of bare strings: docstrings, and those under a field."""
    return sum(
        _length(one)
        for one in node.body
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
    )


def _is_blanket(caught: ast.expr | None) -> bool:
    return caught is None or (isinstance(caught, ast.Name) and caught.id in ("Exception", "BaseException"))


def _is_data_only(node: ast.ClassDef) -> bool:
    """A document model: fields, and no function but properties and class methods."""
    return all(isinstance(one, ast.AnnAssign | ast.Assign | ast.Expr | ast.Pass) for one in node.body) and bool(
        node.body
    )


def _depth(node: ast.AST, inside: int = 0) -> int:
    """The deepest nesting of blocks; `elif` counts as its `if`."""
    deepest = inside
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
                continue
            chained = isinstance(node, ast.If) and name == "orelse" and isinstance(child, ast.If) and len(value) == 1
            deepest = max(deepest, _depth(child, inside + (isinstance(child, NESTING) and not chained)))
    return deepest


def _comment_lines(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})


def _loose(root: Path) -> int:
    return sum(path.name not in EXEMPT_TOP for path in root.glob("*.py"))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def report(root: Path) -> Iterator[tuple[str, str]]:
    """The lines of the table: what, figure."""
    modules = read_package(root)
    total = sizes(modules.values())
    lengths = sorted(module.lines for module in modules.values())
    functions = sorted(count for count, _ in total.functions)
    groups = cycles(modules)
    importers: dict[str, int] = dict.fromkeys(modules, 0)
    for module in modules.values():
        for name in module.imports:
            importers[name] += 1
    yield "modules / lines", f"{len(modules)} / {total.lines}"
    yield "module median / p90 / max lines", f"{_ranks(lengths)} / {lengths[-1]}"
    yield "modules with one importer", str(sum(count == 1 for count in importers.values()))
    yield "loose top-level modules", str(_loose(root))
    p99 = functions[int(len(functions) * 0.99)]
    yield "function median / p99 / max lines", f"{int(statistics.median(functions))} / {p99} / {functions[-1]}"
    yield "functions over 40 lines", str(sum(count > 40 for count in functions))
    yield "functions nested deeper than 3", str(sum(depth > 3 for depth, _ in total.nesting))
    code_classes = total.classes - total.data_classes
    yield (
        "classes per 1,000 lines (data-only not counted)",
        (f"{1000 * total.classes / total.lines:.1f} ({1000 * code_classes / total.lines:.1f})"),
    )
    yield "import lines", _percent(total.import_lines, total.lines)
    yield "docstring lines", _percent(total.docstring_lines, total.lines)
    yield "comment lines", _percent(total.comment_lines, total.lines)
    yield "Any per 10,000 lines", str(round(10000 * total.anys / total.lines))
    yield "blanket handlers", f"{total.blanket} ({10000 * total.blanket / total.lines:.1f} per 10,000 lines)"
    yield "import cycles (largest)", f"{len(groups)} ({len(groups[0]) if groups else 0} modules)"
    yield "imports past a front door", str(len(past_front_doors(modules)))


def _ranks(lengths: list[int]) -> str:
    return f"{int(statistics.median(lengths))} / {lengths[int(len(lengths) * 0.9)]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print how a package is cut: sizes, comments, cycles, front doors.")
    default = Path(__file__).parents[1] / "callagent"
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="of a package; default: callagent")
    parser.add_argument("--cycles", action="store_true", help="name the modules of each import cycle")
    parser.add_argument("--doors", action="store_true", help="name each import past a front door")
    wanted = parser.parse_args()
    for what, figure in report(wanted.folder):
        print(f"{what:50} {figure}")
    modules = read_package(wanted.folder) if wanted.cycles or wanted.doors else {}
    for group in cycles(modules) if wanted.cycles else ():
        print("cycle:", ", ".join(group))
    for importer, imported in sorted(past_front_doors(modules)) if wanted.doors else ():
        print("door:", importer, "->", imported)


if __name__ == "__main__":
    main()
