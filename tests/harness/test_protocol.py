"""Messages between a worker and its parent: they survive the pipe, and only replies to the request at hand count."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from opgauge.harness.measure import Limits
from opgauge.harness.result.result import Status
from opgauge.harness.run.execute import LocalExecutor
from opgauge.harness.worker import protocol
from opgauge.harness.worker.serve import HANDLERS
from tests.faulty.trial import trial

QUICK = Limits(budget_s=0.01, min_samples=2, max_samples=3, warmup_s=0.0)
ADDRESS = protocol.Address(7, "trial", 123)


@pytest.mark.parametrize("kind", [*get_args(protocol.Request), *get_args(protocol.Reply)])
def test_a_message_survives_the_pipe(kind: Any) -> None:
    """Each kind reads back with the values and the address that it was sent with."""
    message = kind(**{item.name: item.name for item in fields(kind)})
    assert protocol.decode(protocol.encode(message, ADDRESS)) == (message, ADDRESS)


def test_each_request_has_a_handler() -> None:
    """A request that was added without a handler fails here rather than in a worker."""
    assert set(HANDLERS) == set(get_args(protocol.Request))


NOT_MESSAGES = (
    b"",
    b"\xff\n",
    b"[]",
    b"7",
    b'{"kind": "Ready"}',
    b'{"kind": "Nothing", "to": [1, "", 1], "content": {}}',
    b'{"kind": "Ready", "to": [1, "", 1], "content": {"more": 1}}',
    b'{"kind": "Ready", "to": [1], "content": {}}',
)


@pytest.mark.parametrize("line", NOT_MESSAGES)
def test_other_lines_are_no_messages(line: bytes) -> None:
    """Whatever a kernel writes to the pipe is refused by one error, never by another or taken for a reply."""
    with pytest.raises(protocol.MismatchedReplyError):
        protocol.decode(line)


@pytest.mark.parametrize("forgery", ["forge_reply", "forge_noise"])
def test_a_forged_reply_is_the_trials_error(forgery: str) -> None:
    """A reply that a kernel writes itself is never taken for its result, and the batch goes on."""
    with LocalExecutor(limits=QUICK, timeout_s=60, preload=("tests.faulty.kernels",)) as executor:
        before, forged, after = executor.run([trial(name) for name in ("baseline", forgery, "baseline")])
    assert (before.status, forged.status, after.status) == (Status.OK, Status.ERROR, Status.OK)
    assert "the worker's pipe carried something other than its reply" in forged.reason
    assert forged.trial == trial(forgery)
