"""The results of a run as JSON text, put together from the texts that the database holds.

They stand there as they are in a file, but for the case, the samples and the place of the quartiles. Reading a run of
500 results and writing it again takes several times as long as all the rest; the samples alone are to be written.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

from sqlalchemy import Engine, Text, bindparam, cast

from harness import jsontext
from harness.store.queries import CASE, RESULT, SAMPLE, select
from harness.store.tables import CaseRow, ResultRow, SampleRow

SAMPLES_OF = ("samples_ns", "cpu_ns", "clock_mhz")
_RUN = RESULT.run_id == bindparam("run")
_RESULTS = (
    select(RESULT.implementation, RESULT.backend, RESULT.device, RESULT.case_key, cast(RESULT.data, Text))
    .add_columns(*(SAMPLE[name] for name in SAMPLES_OF))
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
"""Nothing that a submission may name stands before these two: the first that looks so is the result's own."""
_SAMPLES = re.compile(
    r'"samples_ns": ?\[\], ?"cpu_ns": ?\[\], ?"clock_mhz": ?\[\]\}, ?"quantiles_ns": ?(\[[^\[\]"]*\])\}'
)
_UNMEASURED = re.compile(r'"measurement": ?null\}$')
_HALF = "\\ud"
"""How the escape of half a character begins: those are for `json` to judge."""


def dump_results(engine: Engine, run_key: int) -> str:
    """The results of a run with their raw samples, in order, as a list: what `harness.result.to_json` makes of them."""
    with engine.connect() as connection:
        cases = {key: _plain(text) for key, text in connection.execute(_CASES, {"run": run_key})}
        rows = connection.execute(_RESULTS, {"run": run_key}).all()
    trials: dict[tuple[str, ...], str] = {}
    numbers = iter(_numbers([one for row in rows for one in row[-len(SAMPLES_OF) :]]))
    found = []
    for implementation, backend, device, case_key, text, *packed in rows:
        names = (implementation, backend, device)
        trial = trials.get(names) or trials.setdefault(names, _trial(names))
        samples = ",".join([f'"{name}":[{next(numbers)}]' for name in SAMPLES_OF])
        found.append(f'{{"trial":{{"case":{cases[case_key]},{trial},{_body(text, samples) or _rewritten(text, packed)}')
    return f"[{','.join(found)}]"


def _trial(names: Sequence[str]) -> str:
    """The end of a trial, after its case."""
    return jsontext.write_compact(dict(zip(("implementation", "backend", "device"), names, strict=True))).decode()[1:]


def _numbers(packed: Sequence[bytes | None]) -> list[str]:
    """Numbers as JSON has them in a list, all written at once."""
    if not packed:
        return []
    return jsontext.write_compact([array("d", one or b"").tolist() for one in packed]).decode()[2:-2].split("],[")


def _body(text: str, samples: str) -> str:
    """A result's JSON with samples, its opening brace left out; empty for what is not as this version writes it."""
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
    """The same by reading and writing."""
    found = jsontext.read(text)
    quantiles, measurement = found.pop("quantiles_ns", None), found.get("measurement")
    if quantiles:
        found["extra"] = {**found.get("extra", {}), "quantiles_ns": quantiles}
    if measurement is not None:
        samples = {name: array("d", one or b"").tolist() for name, one in zip(SAMPLES_OF, packed, strict=True)}
        found["measurement"] = {**measurement, **samples}
    return jsontext.write_compact(found).decode()[1:]


def _plain(text: str) -> str:
    return jsontext.write_compact(jsontext.read(text)).decode() if _HALF in text else text
