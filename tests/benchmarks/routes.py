"""Addresses by which the service is measured: every page and API route, many different ones each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import httpx

SORTS = ("name", "speedup", "peer", "time", "share")


class Known:
    """Contents of a database of `count` runs, read through the API: the latest runs, the first and some between."""

    def __init__(self, address: str, count: int) -> None:
        self._api = f"{address}/api/v1"
        offsets = (0, count // 3, max(count - 100, 0))
        self.runs = [run["id"] for offset in offsets for run in self._items(f"/runs?limit=30&offset={offset}")]
        self.cases = [case["id"] for case in self._items("/cases?limit=200")]
        self.ops = [op["op"] for op in self._items("/ops")]
        self.numbers = [item["number"] for item in self._items("/results?limit=100")]
        # three hosts take turns: every third run is of the same one
        self.pairs = list(zip(self.runs, self.runs[3:], strict=False))
        self.regressions = self._regressions(address)

    def _items(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{self._api}{path}", timeout=60).json()["items"]
        return found

    @staticmethod
    def _regressions(address: str) -> list[str]:
        feed = httpx.get(f"{address}/regressions.atom", timeout=60).text
        parts = feed.split(f"<id>{address}/regressions/")[1:]
        return [part.partition("<")[0] for part in parts]


def pages(known: Known) -> dict[str, list[str]]:
    """Addresses of the pages, by kind."""
    return {
        "overview": ["/"],
        "ops": ["/ops"],
        "op": [f"/ops/{op}?sort={sort}" for sort in SORTS for op in known.ops],
        "op, of a run": [f"/ops/{op}?run={run}" for op, run in zip(_around(known.ops, 90), known.runs, strict=False)],
        "roofline": ["/roofline", *(f"/roofline?run={run}" for run in known.runs)],
        "case": [f"/cases/{case}" for case in known.cases],
        "case, 1000 runs": [f"/cases/{case}?last=1000" for case in known.cases],
        "runs": [f"/runs?number={number}" for number in range(1, 41)],
        "run": [f"/runs/{run}" for run in known.runs],
        "compare": [f"/compare?base={base}&head={head}" for head, base in known.pairs],
        "compare, four runs": [
            f"/compare?base={base}&head={'&head='.join(heads)}"
            for base, *heads in zip(known.runs, known.runs[3:], known.runs[6:], known.runs[9:], strict=False)
        ],
        "devices": ["/devices", *(f"/devices?op={op}" for op in known.ops)],
        "search": [f"/search?q={op}" for op in known.ops],
        "search hits": [f"/search/hits?q={word[:length]}" for word in known.ops for length in range(1, len(word) + 1)],
        "history as CSV": [f"/cases/{case}?csv=history" for case in known.cases[:100]],
        "regressions": ["/regressions", *(f"/regressions?op={op}" for op in known.ops)],
        "regression": [f"/regressions/{key}" for key in known.regressions],
        "regressions.atom": ["/regressions.atom"],
        "trust": ["/trust", *(f"/trust?op={op}" for op in known.ops)],
    }


def api(known: Known) -> dict[str, list[str]]:
    """Addresses of the API, by route."""
    some = known.cases[:100]
    results = [
        "limit=100",
        "limit=100&implementation=torch",
        "limit=100&device=cpu&op=" + known.ops[0],
        "limit=100&device=cuda:0",
        "limit=100&status=error",
        "limit=100&status=wrong",
        "limit=100&before=300000&dtype=float16",
        *(f"limit=100&case_id={case}" for case in known.cases[:40]),
    ]
    alone = "limit=100&implementation=optimized&device=cuda:0"
    under = {
        "/runs": [f"/runs?limit=50&offset={offset}" for offset in range(0, 1900, 50)],
        "/runs/ID": [f"/runs/{run}" for run in known.runs],
        "/runs/ID/results": [f"/runs/{run}/results?limit=100" for run in known.runs],
        "/results": [f"/results?{one}" for one in results],
        "/results/N": [f"/results/{number}" for number in known.numbers],
        "/ops": ["/ops"],
        "/cases": [f"/cases?limit=100&op={op}" for op in known.ops],
        "/cases/ID": [f"/cases/{case}" for case in some],
        "/cases/ID/series": [f"/cases/{case}/series?limit=100" for case in some],
        "/cases/ID/series, one": [f"/cases/{case}/series?{alone}" for case in some],
        "/cases/ID/badge.svg": [f"/cases/{case}/badge.svg" for case in some],
        "/ops/OP/badge.svg": [f"/ops/{op}/badge.svg" for op in known.ops],
        "/compare": [f"/compare?base={base}&head={head}" for head, base in known.pairs],
        "/regressions": ["/regressions?limit=100"],
    }
    plain = {path: [path] for path in ("/healthz", "/metrics", "/api/v1/openapi.json")}
    return plain | {f"/api/v1{name}": [f"/api/v1{path}" for path in paths] for name, paths in under.items()}


def files(known: Known) -> dict[str, list[str]]:
    """Addresses of whole runs as files."""
    return {f"run, as {kind}": [f"/runs/{run}/export.{kind}" for run in known.runs[:40]] for kind in ("json", "csv")}


def _around(values: Sequence[str], count: int) -> Iterable[str]:
    return (values[place % len(values)] for place in range(count))
