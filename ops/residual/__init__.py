"""Residual additions of ResNet-50 as ops: a graph as written against the graph that FuseAddToOutput makes of it."""

from opgauge.ops.residual import graphs, op

__all__ = ["graphs", "op"]
