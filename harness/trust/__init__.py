"""Validation of figures and verdicts: the gate's self-tests, planted slowdowns, other clocks."""
