"""Push of stored runs to a service: compressed, large ones in parts, and nothing twice."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from opgauge.harness.errors import HarnessError
from opgauge.harness.report.export import whole_run
from opgauge.harness.store import Run, Store

PART_BYTES = 6 << 20
"""Size of a part before compression; services accept several times as much."""
TRIES = 6
LONGEST_WAIT_S = 60.0
TIMEOUT_S = 60.0
GZIP = b"\x1f\x8b"
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of faults that may pass: the request is repeated."""
UNAUTHORIZED, CONFLICT = 401, 409
REFUSED = frozenset({CONFLICT, 413, 422})
"""Statuses that concern one run: the service may accept the others."""
ROUNDS = 4
"""Times that the parts of a run are sent where another client sends it in other parts at the same time."""


class PushError(HarnessError):
    """The service cannot be reached or refuses; the message has its answer."""


class RefusedError(PushError):
    """The service accepts runs, but not this one."""


class ConflictError(RefusedError):
    """The service has another state of this run: of another client that sends it now, or for good."""


@dataclass(frozen=True)
class Pushed:
    """Outcome of a run: sent, stored already, passed over or refused for `reason`."""

    run: Run
    outcome: str
    reason: str = ""


class Client:
    """A service by its address. Use it in a `with` statement.

    transport: for tests. sleep: waits, seconds.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        try:
            address = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            msg = f"{url!r} is not an address: {error}"
            raise PushError(msg) from error
        if address.scheme not in {"http", "https"} or not address.host:
            msg = f"{url!r} is not the address of a service; for example https://opgauge.example"
            raise PushError(msg)
        if not (token.isascii() and token.isprintable()):
            msg = "OPGAUGE_TOKEN has characters that no token has"
            raise PushError(msg)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=f"{address}/api/v1/", headers=headers, timeout=TIMEOUT_S, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: bytes | None = None, expected: Iterable[int] = (200,)) -> Any:
        """The JSON object of an answer, None for an expected 404 or 204.

        Repeats requests whose fault may pass. Raises RefusedError for a faulty run, PushError otherwise.
        """
        headers = {} if body is None else {"Content-Type": "application/json"}
        if body is not None and body.startswith(GZIP):
            headers["Content-Encoding"] = "gzip"
        answer = self._insist(method, path, body, headers)
        if answer.status_code in expected:
            return None if answer.status_code in {404, 204} else self._read(answer)
        msg = f"{self._http.base_url.host} says {answer.status_code} to {method} {path}: {_detail(answer)}"
        if answer.status_code == UNAUTHORIZED:
            given = "is not one of its tokens" if "Authorization" in self._http.headers else "is not set"
            msg = f"{msg}; OPGAUGE_TOKEN {given}"
        if answer.status_code == CONFLICT:
            raise ConflictError(msg)
        raise RefusedError(msg) if answer.status_code in REFUSED else PushError(msg)

    def pause(self, number: int) -> None:
        """Wait before the next try."""
        self._sleep(_pause_s(number))

    def _read(self, answer: httpx.Response) -> dict[str, Any]:
        """The JSON object of an answer; raises PushError for another program at the address."""
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            msg = f"the program at {self._http.base_url} is not opgauge"
            raise PushError(msg)
        return found

    def _insist(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> httpx.Response:
        for number in range(TRIES):
            is_last = number == TRIES - 1
            try:
                answer = self._http.request(method, path, content=body, headers=headers)
            except httpx.TransportError as error:
                if is_last:
                    msg = f"{self._http.base_url.host} cannot be reached: {error or type(error).__name__}"
                    raise PushError(msg) from error
                self._sleep(_pause_s(number))
                continue
            if answer.status_code not in PASSING or is_last:
                return answer
            self._sleep(max(_pause_s(number), _asked_s(answer)))
        msg = "no try was made"
        raise PushError(msg)


def push(store: Store, runs: Iterable[Run], client: Client, part_bytes: int = PART_BYTES) -> Iterator[Pushed]:
    """Send the runs that the service lacks; yields the outcome of each at once.

    A refused run does not stop the others. Raises PushError if the service accepts none, or cannot be reached.
    """
    for run in runs:
        if run.status == "running":
            yield Pushed(run, "passed over", "it is still running")
        elif not run.results:
            yield Pushed(run, "passed over", "it has no results")
        else:
            yield _push_one(store, run, client, part_bytes)


def _push_one(store: Store, run: Run, client: Client, part_bytes: int) -> Pushed:
    if _is_current(run, client):
        return Pushed(run, "stored already")
    bodies = list(parts(whole_run(run, store.results(run.id, samples=True), store.ceilings(run.id)), part_bytes))
    reason = ""
    for number in range(ROUNDS if len(bodies) > 1 else 1):
        if number:
            client.pause(number - 1)
            if _is_current(run, client):
                return Pushed(run, "stored already")
        try:
            return Pushed(run, _send(run, client, bodies))
        except ConflictError as error:
            reason = str(error)
        except RefusedError as error:
            return Pushed(run, "refused", str(error))
    return Pushed(run, "refused", reason)


def _is_current(run: Run, client: Client) -> bool:
    """Whether the service has all of a run: one that was resumed has more results, or ended otherwise."""
    found = client.ask("GET", f"runs/{run.id}", expected=(200, 404)) or {}
    return (found.get("id"), found.get("results"), found.get("status")) == (run.id, run.results, run.status)


def _send(run: Run, client: Client, bodies: list[bytes]) -> str:
    if len(bodies) == 1:
        answer = client.ask("PUT", f"runs/{run.id}", _packed(bodies[0]), (200, 201))
        return "sent" if answer.get("created") else "stored already"
    digests = [hashlib.sha256(body).hexdigest() for body in bodies]
    _send_parts(run, client, bodies, digests)
    ready = _text({"parts": len(bodies), "digests": digests}).encode()
    if client.ask("POST", f"runs/{run.id}/finish", ready, (200, 201)).get("created"):
        return "sent"
    if not _is_current(run, client):
        msg = f"run {run.id} is stored with other content"
        raise ConflictError(msg)
    return "stored already"


def _send_parts(run: Run, client: Client, bodies: list[bytes], digests: list[str]) -> None:
    """Send the parts that the service lacks, after dropping parts of another split."""
    there = dict(_waiting(run, client))
    wanted = dict(enumerate(digests))
    if any(wanted.get(number) != digest for number, digest in there.items()):
        client.ask("DELETE", f"runs/{run.id}/parts", expected=(204,))
        there = {}
    for number, body in enumerate(bodies):
        if number not in there:
            client.ask("PUT", f"runs/{run.id}/parts/{number}", _packed(body), (200, 201))


def _waiting(run: Run, client: Client) -> Iterator[tuple[int, str]]:
    """Numbers and digests of the parts that have arrived, page by page."""
    offset: int | None = 0
    while offset is not None:
        found = client.ask("GET", f"runs/{run.id}/parts?offset={offset}")
        yield from ((part["number"], part["digest"]) for part in found["items"])
        offset = found["next"]


def parts(whole: dict[str, Any], part_bytes: int) -> Iterator[bytes]:
    """Split a run into bodies of about `part_bytes`, each with some of its results."""
    results = [_text(result) for result in whole["results"]]
    head = {"opgauge": whole["opgauge"], "run": whole["run"], "ceilings": whole["ceilings"]}
    start = size = 0
    for index, result in enumerate(results):
        if size and size + len(result) > part_bytes:
            yield _body(head, results[start:index])
            start, size, head = index, 0, {**head, "ceilings": []}
        size += len(result)
    yield _body(head, results[start:])


def _body(head: dict[str, Any], results: list[str]) -> bytes:
    return f'{_text(head)[:-1]},"results":[{",".join(results)}]}}'.encode()


def _text(data: Any) -> str:
    return json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _packed(body: bytes) -> bytes:
    return gzip.compress(body, 6, mtime=0)


def _pause_s(number: int) -> float:
    """Pause before the next try: doubles each time, with jitter."""
    return float(min(0.5 * 2**number, LONGEST_WAIT_S) * random.uniform(0.5, 1.0))  # noqa: S311  no secret


def _asked_s(answer: httpx.Response) -> float:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), LONGEST_WAIT_S) if text.isdecimal() else 0.0


def _detail(answer: httpx.Response) -> str:
    try:
        found = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        found = answer.text
    return str(found)[:500]
