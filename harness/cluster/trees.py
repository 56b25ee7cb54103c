"""Trees on the hosts of a cluster: every member measures the files of the process that plans, or refuses."""

from __future__ import annotations

import hashlib
import io
import shutil
import socket
import tarfile
from atexit import register
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from opgauge.harness.errors import TreeError

if TYPE_CHECKING:
    from distributed import Client

SUFFIXES = (".py", ".cu", ".cuh", ".c", ".cpp", ".h", ".so", ".toml", ".yaml", ".yml", ".json")
"""Suffixes of the files that decide what a tree measures: sources, built extensions, configuration and cases."""
MOST_BYTES = 64 << 20
"""Largest archive of a tree that is sent to hosts; a larger tree needs a file system that the hosts share."""


def provide_trees(client: Client, members: Iterable[str], trees: Iterable[Path]) -> None:
    """Make the trees available under their own paths on the hosts of `members`.

    A host that has the same files under the path, such as this one, uses those. A host without the path gets a copy
    until its member ends. Raises TreeError for a host whose files differ, or where no copy can be made.
    """
    addresses = list(members)
    for tree in trees:
        path, digest = str(tree.resolve()), tree_digest(tree)
        found = client.run(has_tree, path, workers=addresses)
        different = [address for address, its_digest in found.items() if its_digest not in {"", digest}]
        if different:
            msg = f"{different[0]} has other files than this host in {path}: update them, or remove the folder there"
            raise TreeError(msg)
        missing = [address for address, its_digest in found.items() if not its_digest]
        if missing:
            archive = pack_tree(tree)
            for address in missing:
                # members of one host share the copy: the first one makes it
                client.run(unpack_tree, path, digest, archive, workers=[address])


def tree_digest(tree: Path) -> str:
    """Digest of the names and contents of the files that decide what a tree measures."""
    total = hashlib.sha256()
    for path in _files(tree):
        total.update(path.relative_to(tree).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def has_tree(path: str) -> str:
    """Digest of the tree under a path of this host; empty where there is none."""
    return tree_digest(Path(path)) if Path(path).is_dir() else ""


def pack_tree(tree: Path) -> bytes:
    """Archive of the files of a tree; raises TreeError for one that is too large to send."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz", compresslevel=1) as archive:
        for path in _files(tree):
            archive.add(path, path.relative_to(tree).as_posix(), recursive=False)
            if found.tell() > MOST_BYTES:
                msg = f"{tree} is too large to be sent: put it on a file system that the hosts share"
                raise TreeError(msg)
    return found.getvalue()


def unpack_tree(path: str, digest: str, archive: bytes) -> None:
    """Create the tree under a path of this host; raises TreeError where that cannot be done."""
    folder = Path(path)
    if folder.exists() and has_tree(path) == digest:
        return
    try:
        folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as found:
            found.extractall(folder, filter="data")
    except OSError as error:
        msg = f"{socket.gethostname()} cannot create {path}: {error.strerror}"
        raise TreeError(msg) from error
    _remove_at_exit(folder)
    if has_tree(path) != digest:
        msg = f"{socket.gethostname()} received another tree than was sent: {path}"
        raise TreeError(msg)


@cache
def _remove_at_exit(folder: Path) -> None:
    register(shutil.rmtree, folder, ignore_errors=True)


def _files(tree: Path) -> Iterator[Path]:
    """Files that decide what a tree measures, in a fixed order; of an opgauge tree its ops and cases alone."""
    own = [tree / name for name in ("ops", "cases") if (tree / "ops" / "__init__.py").is_file()]
    for root in own or [tree]:
        for path in sorted(root.rglob("*")):
            hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(tree).parts)
            if path.suffix in SUFFIXES and not hidden and path.is_file():
                yield path
