"""A filled SQLite database copied to PostgreSQL, several times over: later runs of the same cases, at later commits."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier
from sqlalchemy.engine import make_url

from opgauge.harness.store import Store

TABLES = ("run", "case", "ceiling", "result", "sample")
"""Tables that are filled, each after those that it refers to."""
_SHIFTED = {
    "run": {
        "id": "id + {runs}",
        "uuid": "'00000000-0000-0000-0000-' || lpad(to_hex(id + {runs}), 12, '0')",
        "started": "started + {runs} * interval '45 minutes'",
        "finished": "finished + {runs} * interval '45 minutes'",
        "commit": "repeat(lpad(to_hex((id + {runs} - 1) / 3), 8, '0'), 5)",
        "environment": (
            """replace(environment::text, "commit", repeat(lpad(to_hex((id + {runs} - 1) / 3), 8, '0'), 5))::json"""
        ),
    },
    "ceiling": {"id": "id + {runs}", "run_id": "run_id + {runs}"},
    "result": {"id": "id + {results}", "run_id": "run_id + {runs}"},
    "sample": {"result_id": "result_id + {results}"},
}


def copy_into(url: str, path: Path, copies: int) -> None:
    """Fill the empty PostgreSQL database `url` with `copies` times the runs of a SQLite file."""
    with Store.open(url):
        pass
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn, autocommit=True) as server, sqlite3.connect(path) as file:
        server.execute("SET timezone TO 'UTC'")
        for table in TABLES:
            _copy(server, file, table)
        runs, results = (file.execute(f"SELECT max(id) FROM {table}").fetchone()[0] for table in ("run", "result"))  # noqa: S608
        for number in range(1, copies):
            for table in _SHIFTED:
                _shift(server, file, table, number * runs, number * results)
        for table in TABLES[:-1]:
            last = SQL("SELECT setval(pg_get_serial_sequence({}, 'id'), (SELECT max(id) FROM {}))")
            server.execute(last.format(_quoted(table), Identifier(table)))
        server.execute("VACUUM ANALYZE")


def _columns(file: sqlite3.Connection, table: str) -> list[str]:
    return [str(row[0]) for row in file.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _copy(server: psycopg.Connection, file: sqlite3.Connection, table: str) -> None:
    columns = _columns(file, table)
    rows = file.execute(f'SELECT {", ".join(map(_quoted, columns))} FROM "{table}"')  # noqa: S608
    target = SQL("COPY {} ({}) FROM STDIN").format(Identifier(table), SQL(", ").join(map(Identifier, columns)))
    with server.cursor() as cursor, cursor.copy(target) as copy:
        for row in rows:
            copy.write_row(row)


def _shift(server: psycopg.Connection, file: sqlite3.Connection, table: str, runs: int, results: int) -> None:
    """Enter the rows of the file once more, with numbers, times and commits that follow those that are there."""
    columns = _columns(file, table)
    values = [_SHIFTED[table].get(name, _quoted(name)).format(runs=runs, results=results) for name in columns]
    key = "result_id" if table == "sample" else "id"
    size = int(file.execute(f'SELECT max({key}) FROM "{table}"').fetchone()[0])  # noqa: S608
    insert = f'INSERT INTO "{table}" ({", ".join(map(_quoted, columns))}) SELECT {", ".join(values)} FROM "{table}"'  # noqa: S608
    server.execute(f"{insert} WHERE {key} <= {size}".encode())


def _quoted(name: str) -> str:
    return f'"{name}"'
