"""Reading stored results as a table of pandas, Polars or Arrow: `opgauge.results`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from opgauge.harness.errors import StoreError
from opgauge.harness.project import active
from opgauge.harness.project.folder import find_database
from opgauge.harness.report.export import records
from opgauge.harness.store import Store

Library = Literal["pandas", "polars", "arrow", "records"]
TABLES: dict[str, tuple[str, Callable[..., Any]]] = {
    "pandas": ("pandas", lambda pandas, found: pandas.DataFrame.from_records(found)),
    "polars": ("polars", lambda polars, found: polars.from_dicts(found, infer_schema_length=None)),
    "arrow": ("pyarrow", lambda arrow, found: arrow.Table.from_pylist(found)),
}
"""Package of each library, and how it makes a table of records."""
MOST_RUNS = 100_000
"""Most runs that are read."""


def results(
    db: str | None = None,
    *,
    op: str | None = None,
    implementation: str | None = None,
    since: datetime | None = None,
    library: Library = "pandas",
) -> Any:
    """A row per stored result, with the columns of `opgauge export`, oldest run first.

    db: URL, or the path of an SQLite file; None for the one that `opgauge run` uses in the current folder. op,
    implementation: keep results that have them. since: of runs that began then or later; without a time zone it is UTC.
    library: what makes the table, `records` for a list of dicts. Raises StoreError, and ImportError where the library
    is not installed.
    """
    table = _table(library)
    if db is None and active.active() is None:
        active.choose()
    url, _ = find_database(db)
    file = url.removeprefix("sqlite:///")
    if "://" not in file and "?" not in file and not Path(file).is_file():
        msg = f"there is no database {file}"
        raise StoreError(msg)
    limit = since.replace(tzinfo=since.tzinfo or UTC) if since is not None else None
    found: list[dict[str, Any]] = []
    with Store.open(url) as store:
        for run in reversed(store.runs(MOST_RUNS)):
            if limit is not None and run.started.replace(tzinfo=run.started.tzinfo or UTC) < limit:
                continue
            kept = [
                result
                for result in store.results(run.id)
                if op in {None, result.trial.case.op} and implementation in {None, result.trial.implementation}
            ]
            found += records(run, kept, store.ceilings(run.id))
    return table(found)


def _table(library: Library) -> Callable[[list[dict[str, Any]]], Any]:
    """The function that makes a table of records. Raises ImportError, which names the package to install."""
    if library == "records":
        return list
    if library not in TABLES:
        msg = f"library= should be {', '.join(TABLES)} or records, not {library!r}"
        raise ValueError(msg)
    package, make = TABLES[library]
    try:
        return partial(make, import_module(package))
    except ModuleNotFoundError as error:
        msg = f"library={library!r} needs {package}: pip install {package}, or library='records' for a list of dicts"
        raise ImportError(msg, name=package) from error
