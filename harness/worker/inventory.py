"""Inventory of a tree, as plain JSON: its cases, its kernels, and digests of their code.

This runs in a worker that has the tree's `ops`; the process that compares two trees may be unable to build the cases of
either.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from opgauge import ops
from opgauge.harness.case.case import Case
from opgauge.harness.case.casejson import case_from_json, case_to_json
from opgauge.harness.case.file import load_cases
from opgauge.harness.errors import CaseError
from opgauge.harness.project.active import measured
from opgauge.ops import Device, available, kernels


def take(paths: Sequence[Path], *, lenient: bool = False) -> dict[str, Any]:
    """Cases of existing files and folders, every kernel except experimental ones, and the available backends.

    lenient: files with mistakes count as empty, and are named in `notes`. Otherwise raises CaseFileError.
    """
    notes: list[str] = []
    cases = list(_each(paths, notes)) if lenient else load_cases(paths)
    return {
        "cases": [case_to_json(case) for case in cases],
        "kernels": [
            {
                **item.key._asdict(),
                "folder": folder_of(item.path),
                "source": item.path,
                "variant": getattr(item, "variant", False),
                "arrays": getattr(item, "arrays", "numpy"),
            }
            for item in kernels()
            if not getattr(item, "experimental", False)  # kernels of older trees lack the attribute
            and (measured() is None or not folder_of(item.path))  # shipped ones are the same in both trees
        ],
        "available": list(available()),
        "notes": notes,
    }


def buildable(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """For each case, empty if this tree can build it as the same case, else the reason."""
    return [_refusal(case) for case in cases]


def digest(folder: str, backend: str) -> dict[str, str]:
    """Digests of the code of a folder of `ops`, with the shared code.

    host: of the Python, without comments, docstrings and layout, and of the tuning files. device: of the CUDA
    sources and their includes.
    """
    root = Path(ops.__path__[0])
    folders = (root / folder, *sorted(root.glob("_*/")))
    python = [path for part in folders for path in sorted(part.rglob("*.py"))]
    found = {"host": _digest(root, [*python, *sorted((root / "tuning").glob("*.json"))]), "device": ""}
    if backend != "cpu":
        sources = [path for part in folders for path in sorted(part.rglob("*.cu*"))]
        found["device"] = _digest(root, sources)
    return found


def cubins(folder: str, device_index: int) -> str:
    """A digest of the compiled CUDA code of a folder's sources, for a device; compiles those not in the cache."""
    from opgauge.ops._cuda.source import all_sources, device_arch

    root = Path(ops.__path__[0])
    arch = device_arch(device_index)
    total = hashlib.sha256(arch.encode())
    for source in all_sources():
        place = source.path.relative_to(root).parts[0]
        if place == folder or place.startswith("_"):
            total.update(source.compile(arch).cubin.read_bytes())
    return total.hexdigest()


def model(device: str) -> str:
    """The vendor's name of a device; empty without one."""
    found = Device.parse(device)
    return str(import_module("opgauge.ops._core.backend").device_model(found.backend, found.index))


def folder_of(path: str) -> str:
    """The folder of `ops` that contains a file; empty for a file outside."""
    try:
        return Path(path).resolve().relative_to(Path(ops.__path__[0]).resolve()).parts[0]
    except ValueError:
        return ""


def _each(paths: Iterable[Path], notes: list[str]) -> Iterator[Case]:
    files = [file for path in paths for file in (sorted(path.glob("*.y*ml")) if path.is_dir() else [path])]
    for file in files:
        if not file.is_file() or file.name in {"waivers.yaml", "policy.yaml"}:
            continue
        try:
            yield from load_cases([file])
        except CaseError as error:
            notes.append(str(error).partition("\n")[0])


def _refusal(case: Mapping[str, Any]) -> str:
    try:
        built = case_from_json(case)
    except CaseError as error:
        return str(error)
    return "" if built.id == case["id"] else "its parameters mean something else there"


def _digest(root: Path, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        total.update(path.relative_to(root).as_posix().encode() + b"\0")
        text = path.read_bytes()
        total.update(_meaning(text) if path.suffix == ".py" else text)
    return total.hexdigest()


def _meaning(source: bytes) -> bytes:
    """A Python source without comments, layout and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return ast.dump(tree).encode()
