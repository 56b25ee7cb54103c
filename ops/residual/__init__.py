"""Residual additions of ResNet-50 as ops: the original graph, and the graph after FuseAddToOutput."""

from opgauge.ops.residual import graphs, op

__all__ = ["graphs", "op"]
