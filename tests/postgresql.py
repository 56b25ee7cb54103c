"""What tests of the store and of the service find on a PostgreSQL server that lives as long as they do.

`python -m tests.postgresql [PYTEST'S ARGUMENTS]` needs the server's programs, as Debian's package `postgresql` brings
them; without them nothing is tested, which is said. A run takes half of the service's files (`tests/draws.py`). A
server that is there already is named by `OPGAUGE_TEST_DATABASE`, as tests/databases.py has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.draws import some

ROOT = Path(__file__).parent.parent
STORE = ("columns", "maintenance", "migrations", "postgresql", "store", "submission")
"""Tests of the store, in tests/harness."""
ALWAYS = ("api_submit_at_once", "comparison", "database_faults")
"""Tests of the service, in tests/web, of what another server does otherwise: several writers, and faults."""
ELSEWHERE = "serve"
"""Tests of the service's processes, whatever the database."""
FEW_EXAMPLES = "4"
"""Requests to each route in each mode, a third of those on SQLite: most are refused before a query."""
USER = "nobody"
"""Who the server is where root runs the tests, whom it refuses to be."""


def chosen() -> list[str]:
    """Files that this run takes: of the service's, half of those that are not always taken."""
    files = sorted(path.name[len("test_") : -len(".py")] for path in (ROOT / "tests" / "web").glob("test_*.py"))
    others = [name for name in files if name not in {*ALWAYS, ELSEWHERE}]
    taken = (*ALWAYS, *some("PostgreSQL", others, len(others) // 2))
    return [*(f"tests/harness/test_{name}.py" for name in STORE), *(f"tests/web/test_{name}.py" for name in taken)]


def find_programs() -> Path | None:
    """The folder of the newest server's programs; Debian keeps them outside PATH."""
    by_version = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[-3]))
    found = shutil.which("pg_ctl") or (by_version[-1] if by_version else None)
    return Path(found).resolve().parent if found else None


@contextmanager
def server(programs: Path) -> Iterator[str]:
    """The URL of a new, empty server on a socket of its own, which would lose what it has in a crash."""
    as_user = ["runuser", "-u", USER, "--"] if os.getuid() == 0 else []
    with TemporaryDirectory(prefix="opgauge-pg-") as name:
        folder = Path(name)
        if as_user:
            shutil.chown(folder, USER)
        data = str(folder / "data")

        def run(program: str, *arguments: str) -> None:
            command = [*as_user, str(programs / program), "-D", data, *arguments]
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)

        run("initdb", "--auth=trust", "--no-sync", "--username=postgres")
        settings = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "--wait", f"--log={folder}/log", "-o", settings, "start")
        try:
            yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        finally:
            run("pg_ctl", "--wait", "--mode=immediate", "stop")


def main() -> int:
    """Run the tests; the exit code is pytest's."""
    programs = find_programs()
    if programs is None:
        sys.stderr.write("no PostgreSQL server's programs: nothing is tested on it\n")
        return 0
    with server(programs) as url:
        command = [sys.executable, "-m", "pytest", "-q", *chosen(), *sys.argv[1:]]
        variables = {"OPGAUGE_TEST_EXAMPLES": FEW_EXAMPLES, **os.environ, "OPGAUGE_TEST_DATABASE": url}
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
