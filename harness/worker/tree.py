"""Import of `opgauge.ops` from another tree, such as the base commit that the gate checked out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE = "opgauge.ops"
"""Name of the imported package."""
FORMER = "ops"
"""Import name of the package in trees from before it was part of `opgauge`."""
FORMER_MODULES = {"_cuda.source": "_core.cuda", "_cpu": "_core", "_cuda": "_core"}
"""Current names of modules, and their names in such trees. The first match counts."""


def use_tree(tree: Path) -> None:
    """Import the `ops` of `tree` as `opgauge.ops`, before anything else imports it; raises the errors of importing."""
    folder = tree / "ops"
    if _is_former(folder):
        sys.path.insert(0, str(tree))
        sys.meta_path.insert(0, _FormerNames())
        importlib.import_module(PACKAGE)
        return
    spec = spec_from_file_location(PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        msg = f"{folder} is no package"
        raise ImportError(msg)
    module = module_from_spec(spec)
    sys.modules[PACKAGE] = module
    importlib.import_module("opgauge").ops = module  # type: ignore[attr-defined]
    spec.loader.exec_module(module)


def _is_former(folder: Path) -> bool:
    """Whether the package imports itself as `ops`."""
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    return f"from {FORMER}." in text and f"from {PACKAGE}." not in text


class _FormerNames(MetaPathFinder, Loader):
    """Resolves `opgauge.ops.…` to the module that an older tree calls `ops.…`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec whose loader returns the older tree's module."""
        del path, target
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        try:
            self._import(fullname)
        except ModuleNotFoundError:
            return None
        return ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The older tree's module itself."""
        return self._import(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been executed under its own name."""

    @staticmethod
    def _import(fullname: str) -> ModuleType:
        inner = fullname.removeprefix(PACKAGE).removeprefix(".")
        for today, former in FORMER_MODULES.items():
            if inner == today or inner.startswith(f"{today}."):
                inner = former + inner[len(today) :]
                break
        return importlib.import_module(f"{FORMER}.{inner}" if inner else FORMER)
