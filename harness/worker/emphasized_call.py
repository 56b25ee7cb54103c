"""One call on inputs in which few elements dominate (see `emphasis`), of which no kernel knows before its samples."""

from __future__ import annotations

from dataclasses import replace

from opgauge.harness.worker.attempt import Attempt, WrongError
from opgauge.harness.worker.audit import Audit
from opgauge.harness.worker.emphasis import allow_lost, choose_slices, emphasize, write_inputs
from opgauge.harness.worker.inputs import on_host
from opgauge.harness.worker.variation import Exchange, expect_slices, take
from opgauge.harness.worker.verify import check
from opgauge.ops import Bound


def check_emphasis(audit: Audit, attempt: Attempt, call: Bound) -> None:
    """Call once on emphasized inputs; raises WrongError.

    Cases without independent slices have such values in their first sample instead.
    """
    case, axes = attempt.case, audit.changes.variation
    if not audit.changes.is_emphasized or not isinstance(axes, Exchange):
        return
    draw, inputs = audit.changes.draw("emphasis"), attempt.buffers.inputs
    rng = draw.generator()
    chosen = choose_slices(case, axes, rng)
    values = on_host(take(inputs, axes.inputs, chosen))
    changed = emphasize(case, values, axes.inputs, rng)
    part = Exchange(axes.inputs, axes.outputs, len(chosen))
    expected = draw.expect(changed, lambda: expect_slices(case, part, changed, range(len(chosen))))
    if expected is None:
        return
    write_inputs(inputs, axes, chosen, changed)
    try:
        outputs = attempt.outputs(attempt.call(call, 1))
        lenient = allow_lost(expected, case.dtype, part.outputs)
        found = check(on_host(take(outputs, axes.outputs, chosen)), lenient, attempt.kernel.relaxed)
        if not found.ok:  # the probe may have found slices that are not independent: judge all outputs
            found = check(on_host(outputs), audit.expected_now(axes), attempt.kernel.relaxed)
    finally:
        write_inputs(inputs, axes, chosen, values)
    if not found.ok:
        reason = f"{found.reason} (on inputs of which a few elements matter)"
        raise WrongError(reason, replace(found, reason=reason))
