"""Modules beside a user's model file: finding its imports, and importing them.

A package beside the file may have the name of a bundled one (``models``, ``kernels`` ...). The
user's code then gets the user's package, and our code gets ours: import statements of the user's
code look into a separate package first, ``own_beside_N``, whose path is the file's folder. For
relative imports, the module of the file contains the packages that the file is in.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

from workbench import BUNDLED

Read = Callable[[Path], bytes]
# Files of a model and its neighbours, by the folder that is on Python's path for it.
_loaded: dict[str, set[str]] = {}
_numbers = itertools.count()


def files_beside(path: Path, read: Read) -> list[Path]:
    """Return the files beside ``path`` that it imports, directly or through each other.

    Of a package all files count. None of them is run.
    """
    files: set[Path] = set()
    waiting = [path]
    folder, packages = _find_packages(path)
    while waiting:
        file = waiting.pop()
        content = read(file)
        beside = [_files_of(name, path.parent) for name in _imported_relatively(content)]
        if packages and beside:
            beside = [set((folder / packages[0]).rglob("*.py"))]
        elif file.parent != path.parent:  # all files of a package count
            beside = []
        for name in _imported(content):
            own = _files_of(name, path.parent)
            if own - files - {path} and not _is_elsewhere(name, path.parent):
                beside.append(own)
        new = set[Path]().union(*beside) - files - {path}
        waiting += new
        files |= new
    return sorted(files)


def _find_packages(path: Path) -> tuple[Path, list[str]]:
    """Return the packages that contain a file, outermost first, and the outermost's folder."""
    folder, packages = path.parent, list[str]()
    while (folder / "__init__.py").is_file():
        packages.insert(0, folder.name)
        folder = folder.parent
    return folder, packages


def is_shadowed(name: str, folder: Path) -> bool:
    """Return True if ``name`` is a bundled package, and another of that name lies in ``folder``."""
    if name not in BUNDLED:
        return False
    ours = BUNDLED[name]
    return any(not file.resolve().is_relative_to(ours) for file in _files_of(name, folder))


@contextlib.contextmanager
def importing(path: Path, module: types.ModuleType, read: Read) -> Iterator[None]:
    """Let ``module``, made of the file at ``path``, import the present files beside it.

    The state of modules that earlier configurations or models imported is removed.
    """
    folder, files = str(path.parent), set(map(str, files_beside(path, read)))
    stale = files.union(*_loaded.values())
    for key, other in list(sys.modules.items()):
        if getattr(other, "__file__", None) in stale:
            del sys.modules[key]
    for before in _loaded.keys() - {folder}:
        del _loaded[before]
        with contextlib.suppress(ValueError):  # the model may have
            sys.path.remove(before)
    if folder in _loaded or folder not in sys.path:
        _loaded[folder] = files
    if folder not in sys.path:
        sys.path.append(folder)
    outside, packages = _find_packages(path)
    module.__path__ = [str(outside)]
    module.__package__ = ".".join([module.__name__, *packages])
    sys.meta_path[:] = [importer for importer in sys.meta_path if not isinstance(importer, _Finder)]
    shadowed = frozenset(name for name in BUNDLED if is_shadowed(name, path.parent))
    if not shadowed:
        yield
        return
    finder = _Finder(path.parent, shadowed, frozenset(files), module.__name__)
    sys.meta_path.insert(0, finder)
    module.__dict__["__builtins__"] = finder.builtins
    before_import = importlib.import_module
    importlib.import_module = finder.import_module
    try:
        yield
    finally:
        importlib.import_module = before_import


class _Finder(MetaPathFinder):
    """Finder of one folder's modules, in which bundled names mean that folder's.

    ``root``: the name of the module that relative imports look into.
    """

    def __init__(
        self, folder: Path, shadowed: frozenset[str], files: frozenset[str], root: str
    ) -> None:
        self._shadowed, self._root = shadowed, root
        beside = [Path(file) for file in files if Path(file).is_relative_to(folder)]
        self._names = {file.relative_to(folder).parts[0].removesuffix(".py") for file in beside}
        self._package = f"own_beside_{next(_numbers)}"
        package = types.ModuleType(self._package)
        package.__path__ = [str(folder)]
        sys.modules[self._package] = package
        self._folder = folder
        self.builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module beside the file; its imports are those of the folder too."""
        first = name.partition(".")[0]
        is_beside = first in self._names and first not in self._shadowed
        if not is_beside and first not in (self._package, self._root):
            return None
        spec = PathFinder.find_spec(name, [str(self._folder)] if path is None else path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path, self.builtins)
        return spec

    def import_module(self, name: str, package: str | None = None) -> types.ModuleType:
        """Import as ``importlib.import_module``; the person's code gets what lies in the folder."""
        if sys._getframe(1).f_globals.get("__builtins__") is self.builtins and self._is_own(name):
            name = f"{self._package}.{name}"
        return importlib._bootstrap._gcd_import(  # type: ignore[attr-defined, no-any-return]
            importlib.util.resolve_name(name, package)
        )

    def _import(
        self,
        name: str,
        globals: Any = None,
        locals: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if level or not self._is_own(name):
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self._package}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else getattr(module, name.partition(".")[0])

    def _is_own(self, name: str) -> bool:
        return name.partition(".")[0] in self._shadowed


class _Loader(SourceFileLoader):
    """Loader of a module whose import statements look into the folder first."""

    def __init__(self, name: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._names = names

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module."""
        module.__dict__["__builtins__"] = self._names
        super().exec_module(module)


def _files_of(name: str, folder: Path) -> set[Path]:
    """Return the files in ``folder`` that a module or a package of that name is made of.

    As Python does it: a package before a module, and a folder without ``__init__.py`` last.
    """
    module, package = folder / f"{name}.py", folder / name
    if (package / "__init__.py").is_file():
        return set(package.rglob("*.py"))
    if module.is_file():
        return {module}
    return set(package.rglob("*.py")) if name in BUNDLED and package.is_dir() else set()


@functools.lru_cache(maxsize=512)
def _imported(content: bytes) -> frozenset[str]:
    """Return the modules and packages that a file of this content names in its imports."""
    nodes = syntax_nodes(content)
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    absolute = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    names += [node.module for node in absolute if node.module]
    return frozenset(name.partition(".")[0] for name in names)


@functools.lru_cache(maxsize=512)
def _imported_relatively(content: bytes) -> frozenset[str]:
    """Return the names beside a file of this content that its relative imports begin with."""
    nodes = [node for node in syntax_nodes(content) if isinstance(node, ast.ImportFrom)]
    relative = [node for node in nodes if node.level]
    names = [node.module for node in relative if node.module]
    names += [alias.name for node in relative if not node.module for alias in node.names]
    return frozenset(name.partition(".")[0] for name in names)


def too_deeply_nested(path: Path, read: Read) -> Path | None:
    """Return the first of a file and those that it imports which Python's parser gives up on."""
    for file in [path, *files_beside(path, read)]:
        try:
            compile(read(file), file, "exec")
        except (RecursionError, MemoryError):
            return file
        except (SyntaxError, ValueError):
            continue
    return None


def syntax_nodes(content: bytes) -> list[ast.AST]:
    """Return the nodes of the file's syntax tree; none if Python cannot read the file."""
    try:
        return list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_elsewhere(name: str, folder: Path) -> bool:
    """Return True if Python finds a module of that name before it looks into the folder."""
    if name in BUNDLED:
        return not is_shadowed(name, folder)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    origin = None if spec is None else spec.origin
    if any(origin in files for other, files in _loaded.items() if other != str(folder)):
        return False  # from an earlier model: its modules will be unloaded
    return spec is not None and not (origin and Path(origin).is_relative_to(folder))
