"""Dumping a run as JSON text, assembled from the texts in the database.

The database stores results as in a file, except for the case, the samples and the position of the quartiles. Parsing
and writing 500 results would take several times as long as the rest; only the samples are written anew.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from sqlalchemy import Engine, Text, bindparam, cast

from opgauge.harness import json_text
from opgauge.harness.store.columns import CASE, RESULT, SAMPLE, select
from opgauge.harness.store.tables import CaseRow, ResultRow, SampleRow

SAMPLES_OF = ("samples_ns", "cpu_ns", "clock_mhz")
"""Columns with a value per sample."""
_RUN = RESULT.run_id == bindparam("run")
_RESULTS = (
    select(RESULT.implementation, RESULT.backend, RESULT.device, RESULT.case_key, cast(RESULT.data, Text))
    .add_columns(RESULT.median_ns, *(SAMPLE[name] for name in SAMPLES_OF))
    .select_from(ResultRow.__table__.outerjoin(SampleRow.__table__, SAMPLE.result_id == RESULT.id))
    .where(_RUN)
    .order_by(RESULT.id)
)
_CASES = (
    select(CASE.id, cast(CASE.data, Text))
    .select_from(CaseRow.__table__)
    .where(CASE.id.in_(select(RESULT.case_key).where(_RUN)))
)
_EXTRA = re.compile(r'"block": ?\d+, ?"extra": ?\{(\})?')
"""Start of a result's `extra`; no text of a submission precedes it, so the first match is the result's own."""
_SAMPLES = re.compile(
    r'"samples_ns": ?\[\], ?"cpu_ns": ?\[\], ?"clock_mhz": ?\[\]\}, ?"quantiles_ns": ?(\[[^\[\]"]*\])\}'
)
_UNMEASURED = re.compile(r'"measurement": ?null\}$')
_HALF = "\\ud"
"""Start of the escape of a lone surrogate, which `json` handles."""


def dump_run(engine: Engine, run_key: int, head: str) -> str:
    """A run with its results and raw samples, in order: the text of what `harness.result.to_json` gives.

    head: the run as JSON, which ends with an empty list of results.
    """
    with engine.connect() as connection:
        cases = {
            key: f'{{"trial":{{"case":{_plain(text)}' for key, text in connection.execute(_CASES, {"run": run_key})
        }
        rows = connection.execute(_RESULTS, {"run": run_key}).all()
    trials: dict[tuple[str, ...], str] = {}
    packed_of = [_kept(*row[-1 - len(SAMPLES_OF) :]) for row in rows]
    found = []
    for row, packed, lists in zip(rows, packed_of, _samples(packed_of), strict=True):
        implementation, backend, device, case_key, text = row[: -1 - len(SAMPLES_OF)]
        names = (implementation, backend, device)
        trial = trials.get(names) or trials.setdefault(names, _trial(names))
        found.append(f"{cases[case_key]},{trial},{_body(text, lists) or _rewritten(text, packed)}")
    return f"{head.removesuffix(']}')}{','.join(found)}]}}"


def _kept(median_ns: float | None, times: bytes | None, *others: bytes | None) -> list[bytes | None]:
    """Raw samples of a result; the median is the only one where they were dropped."""
    if times is None and median_ns is not None:
        return [array("d", [median_ns]).tobytes(), b"", b""]
    return [times, *others]


def _trial(names: Sequence[str]) -> str:
    """The end of a trial, after its case."""
    return json_text.write_compact(dict(zip(("implementation", "backend", "device"), names, strict=True))).decode()[1:]


def _samples(packed: Sequence[Sequence[bytes | None]]) -> list[str]:
    """The samples of each result as JSON; the numbers of all are written in one call."""
    lists = [array("d", one).tolist() for three in packed for one in three if one]
    written = iter(json_text.write_compact(lists).decode()[2:-2].split("],["))
    found = []
    for times, cpu, clock in packed:
        first = next(written) if times else ""
        second, third = next(written) if cpu else "", next(written) if clock else ""
        found.append(f'"samples_ns":[{first}],"cpu_ns":[{second}],"clock_mhz":[{third}]')
    return found


def _body(text: str, samples: str) -> str:
    """A result's JSON with samples, without its opening brace; empty for text that this version would not write."""
    extra = _EXTRA.search(text)
    if _HALF in text or extra is None:
        return ""
    if _UNMEASURED.search(text, len(text) - 20):
        return text[1:]
    start = text.rfind('"samples_ns"')
    tail = _SAMPLES.fullmatch(text, start) if start > extra.end() else None
    if tail is None:
        return ""
    inside = extra.end(1) - 1 if extra[1] else extra.end()
    return f'{text[1:inside]}"quantiles_ns":{tail[1]}{"" if extra[1] else ","}{text[inside:start]}{samples}}}}}'


def _rewritten(text: str, packed: Sequence[bytes | None]) -> str:
    """The same text by parsing and writing."""
    found = json_text.read(text)
    quantiles, measurement = found.pop("quantiles_ns", None), found.get("measurement")
    if quantiles:
        found["extra"] = {**found.get("extra", {}), "quantiles_ns": quantiles}
    if measurement is not None:
        samples = {name: array("d", one or b"").tolist() for name, one in zip(SAMPLES_OF, packed, strict=True)}
        found["measurement"] = {**measurement, **samples}
    return json_text.write_compact(found).decode()[1:]


def _plain(text: str) -> str:
    return json_text.write_compact(json_text.read(text)).decode() if _HALF in text else text
