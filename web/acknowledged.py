"""Acknowledged regressions: those that an acknowledgement of a person or the waiver file covers today."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from opgauge.harness.judge.verdict import Subject
from opgauge.harness.store.acknowledgements import Acknowledgement
from opgauge.web.regression import Regression, RegressionState
from opgauge.web.waivers import WaiverFile


def acknowledge(
    found: Sequence[Regression], given: Sequence[Acknowledgement], today: date, waivers: WaiverFile | None = None
) -> list[Regression]:
    """The regressions, with the acknowledgements that cover them."""
    return [_acknowledged(one, given, today, waivers or WaiverFile()) for one in found]


def _acknowledged(found: Regression, given: Sequence[Acknowledgement], today: date, waivers: WaiverFile) -> Regression:
    if found.state not in {RegressionState.OPEN, RegressionState.SUSPECTED}:
        return found
    for one in given:
        if _is_of(found, one) and one.verdict == found.kind and one.until >= today and _is_expected(found, one):
            return replace(found, state=RegressionState.ACKNOWLEDGED, acknowledgement=one)
    subject = Subject(found.case.op, found.case.name, found.case.case_id, found.implementation, found.device.name)
    waiver = waivers.find(subject, found.kind, found.ratio, today)
    return replace(found, state=RegressionState.ACKNOWLEDGED, acknowledgement=waiver) if waiver else found


def _is_of(found: Regression, given: Acknowledgement) -> bool:
    """Whether the acknowledgement is of this regression; one without a key is of all of its case on such a device."""
    if given.regression:
        return given.regression == found.key
    named = (given.case_id, given.implementation, given.device)
    return named == (found.case.case_id, found.implementation, found.device.name)


def _is_expected(found: Regression, given: Acknowledgement) -> bool:
    return given.expected_ratio is None or found.ratio is None or found.ratio <= given.expected_ratio
