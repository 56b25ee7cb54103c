"""ResNet-50: its shapes, its 32 additions, and that every one of them fuses."""

from __future__ import annotations

from collections import Counter

import pytest

from opgauge.ops._core.fusion import ADDEND, fuse_add_to_output
from opgauge.ops.residual.resnet50 import sites, training_graph


def test_sites_are_those_of_the_paper() -> None:
    """Sixteen blocks; channels and sizes of the four stages."""
    shapes = Counter((site.channels, site.size) for site in sites())
    assert shapes == {(256, 56): 3, (512, 28): 4, (1024, 14): 6, (2048, 7): 3}


@pytest.mark.parametrize("shortcut_first", [False, True])
def test_all_32_additions_fuse(shortcut_first: bool) -> None:
    """16 additions go into normalizations, 16 into data gradients, whichever term comes first."""
    graph = training_graph(shortcut_first=shortcut_first)
    assert sum(node.op == "add_n" for node in graph.nodes) == 32
    result = fuse_add_to_output(graph)
    assert result.fused == 32
    into = Counter(result.graph.by_name[report.fused_into or ""].op for report in result.reports)
    assert into == {"normalization": 16, "conv_data_grad": 16}


def test_every_backward_addition_lands_on_a_1x1_convolution() -> None:
    """The data gradients that take an addend are of the first or of the shortcut's convolution."""
    result = fuse_add_to_output(training_graph())
    taking = [node.name for node in result.graph.nodes if ADDEND in node.inputs and node.op == "conv_data_grad"]
    assert len(taking) == 16
    assert all(name.endswith(("a_data_grad", "d_data_grad")) for name in taking)


def test_twelve_forward_addends_outlive_the_addition() -> None:
    """Where the shortcut is the block's input itself it is still needed backward: it may never be overwritten."""
    graph = training_graph()
    alive = 0
    for node in graph.nodes:
        if node.op == "add_n" and not node.name.endswith("grad"):
            shortcut = list(node.inputs.values())[1]
            others = [name for name in graph.consumers(shortcut) if name != node.name]
            alive += any(name.endswith("relu_grad") for name in others)
    assert alive == 12
