"""Ops that are defined by a reference function: `opgauge.op` and `implementation`."""
