"""ResNet-50 as a graph: forward and backward pass with all 32 residual additions.

Bottleneck blocks as in He et al. 2015 (stride in the 3x3 convolution): 3, 4, 6 and 3 blocks
of widths 64 to 512. Each block adds its shortcut after the last normalization, and its
backward pass adds the shortcut's gradient to the block's own: 16 additions each way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opgauge.ops._core.graph import Graph, Node

BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4
"""Blocks and inner channels by stage, and output channels per inner channel."""


@dataclass(frozen=True, slots=True)
class Site:
    """One block's residual additions, for images of `size` pixels at its output.

    channels, size: of the tensors added forward. width: channels inside the block.
    into_channels, into_size: of the block's input, the shape of the backward addition.
    """

    stage: int
    block: int
    channels: int
    size: int
    width: int
    into_channels: int
    into_size: int

    @property
    def name(self) -> str:
        """The paper's name: `conv2_1` is the first block of the first stage."""
        return f"conv{self.stage + 2}_{self.block + 1}"

    @property
    def downsamples(self) -> bool:
        """Whether the shortcut is a 1x1 convolution rather than the input itself."""
        return self.block == 0


def sites(image: int = 224) -> tuple[Site, ...]:
    """The 16 blocks in order, for square images of `image` pixels."""
    found = []
    channels, size = 64, image // 4
    for stage, (blocks, width) in enumerate(zip(BLOCKS, WIDTHS, strict=True)):
        for block in range(blocks):
            into_channels, into_size = channels, size
            if block == 0 and stage > 0:
                size = -(-size // 2)
            channels = EXPANSION * width
            found.append(Site(stage, block, channels, size, width, into_channels, into_size))
    return tuple(found)


class _Builder:
    """Builder of a graph; each method adds one node and returns its value."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def node(self, name: str, op: str, inputs: Mapping[str, str], outputs: tuple[str, ...]) -> Node:
        """Add a node; inputs without a producer become graph inputs."""
        for value in inputs.values():
            if ":" not in value and value not in self.inputs:
                self.inputs.append(value)
        self.nodes.append(Node(name, op, inputs, outputs))
        return self.nodes[-1]

    def convolve(self, name: str, x: str) -> str:
        """A convolution."""
        return self.node(name, "conv", {"x": x, "filter": f"{name}_filter"}, ("y",)).value("y")

    def normalize(self, name: str, x: str) -> str:
        """A batch normalization in training."""
        inputs = {"x": x, "gamma": f"{name}_gamma", "beta": f"{name}_beta"}
        return self.node(name, "normalization", inputs, ("y", "mean", "inv_variance")).value("y")

    def activate(self, name: str, x: str) -> str:
        """A rectifier."""
        return self.node(name, "relu", {"x": x}, ("y",)).value("y")

    def add(self, name: str, one: str, two: str) -> str:
        """An addition of two terms."""
        return self.node(name, "add_n", {"in_0": one, "in_1": two}, ("out",)).value("out")

    def activate_back(self, name: str, y: str, dy: str) -> str:
        """Gradient of a rectifier, from its saved output."""
        return self.node(name, "relu_grad", {"y": y, "dy": dy}, ("dx",)).value("dx")

    def normalize_back(self, name: str, of: str, x: str, dy: str) -> str:
        """Gradient of a batch normalization, from its input and saved statistics."""
        inputs = {
            "x": x,
            "dy": dy,
            "gamma": f"{of}_gamma",
            "mean": f"{of}:mean",
            "inv_variance": f"{of}:inv_variance",
        }
        outputs = ("dx", "dgamma", "dbeta")
        return self.node(name, "normalization_grad", inputs, outputs).value("dx")

    def convolve_back(self, of: str, x: str, dy: str) -> str:
        """Both gradients of a convolution; gives the data gradient."""
        self.node(f"{of}_filter_grad", "conv_filter_grad", {"dy": dy, "x": x}, ("dfilter",))
        inputs = {"dy": dy, "filter": f"{of}_filter", "x_like": x}
        return self.node(f"{of}_data_grad", "conv_data_grad", inputs, ("dx",)).value("dx")


def training_graph(*, shortcut_first: bool = False) -> Graph:
    """Forward and backward pass of ResNet-50; returns the logits and every filter gradient.

    `shortcut_first` writes the shortcut as the first term of each addition.
    """
    build = _Builder()
    stem = build.convolve("conv1", "image")
    stem_y = build.activate("conv1_relu", build.normalize("conv1_bn", stem))
    pooled = build.node("pool", "max_pool", {"x": stem_y}, ("y", "indices")).value("y")
    x = pooled
    entries = []
    for site in sites():
        entries.append(x)
        x = _forward(build, site, x, shortcut_first=shortcut_first)
    features = build.node("mean", "mean", {"x": x}, ("out",)).value("out")
    logits = build.node("fc", "matmul", {"a": features, "b": "fc_weight"}, ("out",)).value("out")
    loss_inputs = {"x": logits, "label": "label"}
    dlogits = build.node("loss_grad", "softmax_cross_entropy_grad", loss_inputs, ("dx",)).value("dx")
    dfeatures = build.node("fc_grad", "matmul", {"a": dlogits, "b": "fc_weight"}, ("out",)).value("out")
    dx = build.node("mean_grad", "broadcast", {"x": dfeatures}, ("dx",)).value("dx")
    for site, entry in zip(reversed(sites()), reversed(entries), strict=True):
        dx = _backward(build, site, entry, dx, shortcut_first=shortcut_first)
    pool_inputs = {"indices": "pool:indices", "dy": dx}
    dstem_y = build.node("pool_grad", "max_pool_grad", pool_inputs, ("dx",)).value("dx")
    dstem = build.activate_back("conv1_relu_grad", stem_y, dstem_y)
    dconv = build.normalize_back("conv1_bn_grad", "conv1_bn", stem, dstem)
    build.node("conv1_filter_grad", "conv_filter_grad", {"dy": dconv, "x": "image"}, ("dfilter",))
    returned = {"logits": logits}
    for node in build.nodes:
        if node.op == "conv_filter_grad":
            returned[node.name] = node.value("dfilter")
    return Graph(tuple(build.nodes), tuple(build.inputs), returned)


def _forward(build: _Builder, site: Site, x: str, *, shortcut_first: bool) -> str:
    name = site.name
    inner = x
    for part in ("a", "b"):
        inner = build.convolve(f"{name}{part}", inner)
        inner = build.activate(f"{name}{part}_relu", build.normalize(f"{name}{part}_bn", inner))
    main = build.normalize(f"{name}c_bn", build.convolve(f"{name}c", inner))
    shortcut = x
    if site.downsamples:
        shortcut = build.normalize(f"{name}d_bn", build.convolve(f"{name}d", x))
    terms = (shortcut, main) if shortcut_first else (main, shortcut)
    return build.activate(f"{name}_relu", build.add(f"{name}_add", *terms))


def _backward(build: _Builder, site: Site, x: str, dy: str, *, shortcut_first: bool) -> str:
    name = site.name
    dsum = build.activate_back(f"{name}_relu_grad", f"{name}_relu:y", dy)
    dmain = build.normalize_back(f"{name}c_bn_grad", f"{name}c_bn", f"{name}c:y", dsum)
    dmain = build.convolve_back(f"{name}c", f"{name}b_relu:y", dmain)
    for part, before in (("b", f"{name}a_relu:y"), ("a", x)):
        dmain = build.activate_back(f"{name}{part}_relu_grad", f"{name}{part}_relu:y", dmain)
        dmain = build.normalize_back(f"{name}{part}_bn_grad", f"{name}{part}_bn", f"{name}{part}:y", dmain)
        dmain = build.convolve_back(f"{name}{part}", before, dmain)
    dshortcut = dsum
    if site.downsamples:
        dshortcut = build.normalize_back(f"{name}d_bn_grad", f"{name}d_bn", f"{name}d:y", dsum)
        dshortcut = build.convolve_back(f"{name}d", x, dshortcut)
    terms = (dshortcut, dmain) if shortcut_first else (dmain, dshortcut)
    return build.add(f"{name}_add_grad", *terms)
