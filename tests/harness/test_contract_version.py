"""What the harness asks of a tree's `ops` is written down in one place, and is all that it asks."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from opgauge.harness.worker.contract import ASKED, FIELDS, OPTIONAL, incompatibility
from opgauge.harness.worker.verify import SIGN_OF, SIGNED_NUMBER
from opgauge.ops._core import overflow
from tests.tinytree import TinyTree

ROOT = Path(__file__).parent.parent.parent
LOADS = """
import json, sys
import opgauge.harness.worker.serve, opgauge.harness.worker.contract, opgauge.harness.worker.inventory
import opgauge.harness.worker.bench
import opgauge.harness.worker.ceilings, opgauge.harness.worker.profiler
import opgauge.harness.measure.cpu, opgauge.harness.measure.cuda
print(json.dumps([module.__file__ for name, module in sys.modules.items() if name.startswith('opgauge.harness.')]))
"""


def names_asked(path: Path) -> set[tuple[str, str]]:
    """Modules of `ops` and names that a source imports."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        (str(node.module), alias.name)
        for node in nodes
        if f"{node.module}.".startswith("opgauge.ops.")
        for alias in node.names
    }


def test_a_worker_asks_for_nothing_else() -> None:
    """Every name of `ops` that a module of the worker imports is on the list."""
    done = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = [Path(file) for file in json.loads(done.stdout) if file]
    asked = {pair for path in loaded for pair in names_asked(path)}
    known = {(module, name) for names in (ASKED, OPTIONAL) for module in names for name in names[module]}
    known |= {(module.rpartition(".")[0], module.rpartition(".")[2]) for module in ASKED}
    assert asked
    assert asked - known == set()


def test_both_sides_of_the_contract_name_signs_alike() -> None:
    """Bounds name an output's sign by a key that the worker knows without importing it: older trees have none."""
    assert (SIGN_OF.format("y"), SIGNED_NUMBER) == (overflow.sign_of("y"), overflow.SIGNED_NUMBER)


def test_this_tree_has_all_that_is_asked() -> None:
    """The tree at hand can be asked; another folder cannot be taken for it."""
    assert incompatibility(ROOT) == ""
    assert incompatibility(ROOT / "tests") == "it has no ops"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """Names that another version lacks, and fields of the values behind them, are listed."""
    tree = TinyTree(tmp_path / "tree")
    init = tree.path / "ops" / "__init__.py"
    init.write_text(init.read_text() + "\ndel find_op\n\nclass Kernel:\n    pass\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
    code += "from opgauge.harness.worker.contract import incompatibility; print(incompatibility(Path(sys.argv[1])))"
    arguments = [sys.executable, "-c", code, str(tree.path)]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "its ops have no opgauge.ops.find_op (contract 1)" in said
    init.write_text(init.read_text().replace("del find_op", ""))
    said = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "Kernel.bind" in said
    assert set(FIELDS) == {"Op", "Kernel"}
