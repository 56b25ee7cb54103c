"""Definition of residual_block and resnet50_adds: normalizations and data gradients, each followed by an addition.

residual_block is one block of ResNet-50, both ways:

    y  = normalization(x, gamma, beta) + shortcut          mean, inv_variance as normalization gives them
    dx = conv_data_grad(dy, filter) + shortcut_grad        a 1x1 convolution

resnet50_adds is all 32 additions of a training step, 16 each way, at the shapes of ResNet-50. Tensors of
the blocks of one stage are shared as inputs; every output is separate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from opgauge.ops._core.dtype import FLOATS, dtype_info
from opgauge.ops._core.errors import ParameterError, ShapeError
from opgauge.ops._core.execution import infer_shapes
from opgauge.ops._core.execution import reference as run_reference
from opgauge.ops._core.fusion import fuse_add_to_output
from opgauge.ops._core.graph import Graph, Node
from opgauge.ops._core.op import Array, Input, Op, Shape, Shapes, TensorSpec, Work
from opgauge.ops._core.params import make_plain
from opgauge.ops._core.registry import find_op, register
from opgauge.ops.residual.resnet50 import Site, sites

Layout = Literal["channels_first", "channels_last"]
STAGES = 4
RANK = 4
"""Stages of ResNet-50, and rank of an image tensor."""


@dataclass(frozen=True, slots=True)
class ResidualBlockParams:
    """data_format: channels_first (N, C, H, W) or channels_last (N, H, W, C)."""

    data_format: Layout = "channels_first"


@dataclass(frozen=True, slots=True)
class Resnet50AddsParams:
    """batch: images. image: their height and width. data_format as in residual_block."""

    batch: int = 32
    image: int = 224
    data_format: Layout = "channels_first"

    def __post_init__(self) -> None:
        make_plain(self)
        if self.batch < 1 or self.image < 32:
            msg = f"batch {self.batch}, image {self.image}: at least 1 image of 32 pixels"
            raise ParameterError(msg)


def _shape(layout: Layout, batch: int, channels: int, height: int, width: int) -> Shape:
    last = layout == "channels_last"
    return (batch, height, width, channels) if last else (batch, channels, height, width)


def _filter(layout: Layout, out_channels: int, channels: int) -> Shape:
    return (out_channels, 1, 1, channels) if layout == "channels_last" else (out_channels, channels, 1, 1)


def forward_nodes(name: str, layout: Layout, suffix: str) -> tuple[Node, Node]:
    """A normalization of `x{suffix}` and the addition of `shortcut{suffix}`."""
    axis = 3 if layout == "channels_last" else 1
    inputs = {"x": f"x{suffix}", "gamma": f"gamma{suffix}", "beta": f"beta{suffix}"}
    params = find_op("normalization").params(axis=axis)
    made = Node(f"{name}_norm", "normalization", inputs, ("y", "mean", "inv_variance"), params)
    terms = {"in_0": made.value("y"), "in_1": f"shortcut{suffix}"}
    return made, Node(f"{name}_add", "add_n", terms, ("out",), find_op("add_n").params())


def backward_nodes(name: str, layout: Layout, suffix: str, shape_suffix: str) -> tuple[Node, Node]:
    """The data gradient of `dy{suffix}` and the addition of `shortcut_grad{shape_suffix}`."""
    addend = f"shortcut_grad{shape_suffix}"
    inputs = {"dy": f"dy{suffix}", "filter": f"filter{suffix}", "x_like": addend}
    params = find_op("conv_data_grad").params(data_format=layout)
    made = Node(f"{name}_data_grad", "conv_data_grad", inputs, ("dx",), params)
    terms = {"in_0": made.value("dx"), "in_1": addend}
    return made, Node(f"{name}_add_grad", "add_n", terms, ("out",), find_op("add_n").params())


def block_graph(params: ResidualBlockParams) -> Graph:
    """The original graph of residual_block: two producers, two additions."""
    norm, add = forward_nodes("block", params.data_format, "")
    conv, add_grad = backward_nodes("block", params.data_format, "", "")
    returned = {
        "y": add.value("out"),
        "mean": norm.value("mean"),
        "inv_variance": norm.value("inv_variance"),
        "dx": add_grad.value("out"),
    }
    inputs = ("x", "gamma", "beta", "shortcut", "dy", "filter", "shortcut_grad")
    return Graph((norm, add, conv, add_grad), inputs, returned)


def _into(site: Site) -> str:
    """Suffix of the operands of a block's backward addition."""
    return f"_{site.into_channels}"


def _gradient(site: Site) -> str:
    """Suffix of a block's data gradient: the width changes between a stage's first block and the others."""
    return f"_{site.into_channels}_{site.width}"


def adds_graph(params: Resnet50AddsParams) -> Graph:
    """The original graph of resnet50_adds: 32 producers, 32 additions."""
    nodes: list[Node] = []
    returned: dict[str, str] = {}
    for site in sites(params.image):
        norm, add = forward_nodes(site.name, params.data_format, f"_{site.channels}")
        conv, add_grad = backward_nodes(site.name, params.data_format, _gradient(site), _into(site))
        nodes += [norm, add, conv, add_grad]
        returned[f"{site.name}_y"] = add.value("out")
        returned[f"{site.name}_dx"] = add_grad.value("out")
    return Graph(tuple(nodes), tuple(adds_inputs(params, "float32")), returned)


def adds_inputs(params: Resnet50AddsParams, dtype: str) -> dict[str, TensorSpec]:
    """Every input of resnet50_adds, by name."""
    statistic = dtype_info(dtype).accumulate
    batch, layout = params.batch, params.data_format
    found: dict[str, TensorSpec] = {}
    for site in sites(params.image):
        out = TensorSpec(_shape(layout, batch, site.channels, site.size, site.size), dtype)
        into = TensorSpec(_shape(layout, batch, site.into_channels, site.into_size, site.into_size), dtype)
        dy = TensorSpec(_shape(layout, batch, site.width, site.into_size, site.into_size), dtype)
        found |= {
            f"x_{site.channels}": out,
            f"gamma_{site.channels}": TensorSpec((site.channels,), statistic),
            f"beta_{site.channels}": TensorSpec((site.channels,), statistic),
            f"shortcut_{site.channels}": out,
            f"dy{_gradient(site)}": dy,
            f"filter{_gradient(site)}": TensorSpec(_filter(layout, site.width, site.into_channels), dtype),
            f"shortcut_grad{_into(site)}": into,
        }
    return found


def infer_block(shapes: Mapping[str, Shape], dtype: str, params: ResidualBlockParams) -> Shapes:
    """Shape rule: everything follows from x and dy, of one batch and size. Raises ShapeError."""
    x, dy = shapes["x"], shapes["dy"]
    channel = 3 if params.data_format == "channels_last" else 1
    if len(x) != RANK or len(dy) != RANK or (*x[:channel], *x[channel + 1 :]) != (*dy[:channel], *dy[channel + 1 :]):
        msg = f"x {list(x)} and dy {list(dy)} must have rank {RANK} and differ in channels only"
        raise ShapeError(msg)
    statistic = TensorSpec((x[channel],), dtype_info(dtype).accumulate)
    full = TensorSpec(x, dtype)
    inputs = {
        "x": full,
        "gamma": statistic,
        "beta": statistic,
        "shortcut": full,
        "dy": TensorSpec(dy, dtype),
        "filter": TensorSpec(_filter(params.data_format, dy[channel], x[channel]), dtype),
        "shortcut_grad": full,
    }
    for name, given in shapes.items():
        if inputs[name].shape != given:
            msg = f"{name} is {list(given)}; it must be {list(inputs[name].shape)}"
            raise ShapeError(msg)
    return _with_outputs(block_graph(params), inputs, dtype)


def infer_adds(shapes: Mapping[str, Shape], dtype: str, params: Resnet50AddsParams) -> Shapes:
    """Shape rule: everything follows from the parameters. Raises ShapeError for a contradicting shape."""
    inputs = adds_inputs(params, dtype)
    for name, given in shapes.items():
        if inputs[name].shape != given:
            msg = f"{name} is {list(given)}; batch and image make it {list(inputs[name].shape)}"
            raise ShapeError(msg)
    return _with_outputs(adds_graph(params), inputs, dtype)


def _with_outputs(graph: Graph, inputs: dict[str, TensorSpec], dtype: str) -> Shapes:
    _, specs = infer_shapes(graph, inputs, dtype)
    return Shapes(inputs, {name: specs[value] for name, value in graph.outputs.items()})


def written(params: ResidualBlockParams | Resnet50AddsParams) -> Graph:
    """The original graph."""
    return block_graph(params) if isinstance(params, ResidualBlockParams) else adds_graph(params)


def reference(arrays: Mapping[str, Array], params: ResidualBlockParams | Resnet50AddsParams) -> dict[str, Array]:
    """The original graph, by the references of its ops."""
    graph = written(params)
    values = run_reference(graph, arrays)
    return {name: values[value] for name, value in graph.outputs.items()}


def work(shapes: Shapes, params: ResidualBlockParams | Resnet50AddsParams) -> Work:
    """Least work of each producer with its addend; tensors shared between blocks count for each."""
    graph = fuse_add_to_output(written(params)).graph
    dtype = next(iter(shapes.outputs.values())).dtype
    by_node, _ = infer_shapes(graph, shapes.inputs, dtype)
    works = [find_op(graph.by_name[name].op).work(found, graph.by_name[name].params) for name, found in by_node.items()]
    return Work(
        sum(item.bytes_read for item in works),
        sum(item.bytes_written for item in works),
        sum(item.flops for item in works),
    )


def bound(
    arrays: Mapping[str, Array],
    outputs: Mapping[str, Array],
    params: ResidualBlockParams | Resnet50AddsParams,
    dtype: str,
) -> dict[str, Array | float]:
    """Each producer's own bound, which allows the rounding between a producer and its addition."""
    del outputs
    graph = fuse_add_to_output(written(params)).graph
    values = run_reference(graph, arrays)
    allowed: dict[str, Array | float] = {}
    for node in graph.nodes:
        taken = {name: values[value] for name, value in node.inputs.items()}
        made = {output: values[node.value(output)] for output in node.outputs}
        found = find_op(node.op).bound(taken, made, node.params, dtype)
        allowed |= {node.value(output): limit for output, limit in found.items()}
    return {name: allowed[value] for name, value in graph.outputs.items()}


_SOURCE = "FuseAddToOutput, OneFlow #3524; ResNet-50, He et al. 2015"

RESIDUAL_BLOCK = register(
    Op(
        name="residual_block",
        params=ResidualBlockParams,
        dtypes=FLOATS,
        inputs=(
            Input("x", doc="(N, C, H, W) or (N, H, W, C): input of the normalization"),
            Input("gamma", required=False, mean=1.0, std=0.25, doc="(C,)"),
            Input("beta", required=False, doc="(C,)"),
            Input("shortcut", required=False, doc="the shape of x"),
            Input("dy", doc="(N, Cm, H, W) or (N, H, W, Cm)"),
            Input("filter", required=False, doc="(Cm, C, 1, 1) or (Cm, 1, 1, C)"),
            Input("shortcut_grad", required=False, doc="the shape of x"),
        ),
        outputs=("y", "mean", "inv_variance", "dx"),
        infer=infer_block,
        reference=reference,
        work=work,
        bound=bound,
        summary="the two residual additions of one block, as graphs",
        source=_SOURCE,
    )
)
"""The registered op."""


def _adds_op_inputs() -> tuple[Input, ...]:
    found = []
    for name in adds_inputs(Resnet50AddsParams(), "float32"):
        gamma = name.startswith("gamma")
        found.append(Input(name, required=False, mean=1.0 if gamma else 0.0, std=0.25 if gamma else 1.0))
    return tuple(found)


RESNET50_ADDS = register(
    Op(
        name="resnet50_adds",
        params=Resnet50AddsParams,
        dtypes=FLOATS,
        inputs=_adds_op_inputs(),
        outputs=tuple(f"{site.name}_{output}" for site in sites() for output in ("y", "dx")),
        infer=infer_adds,
        reference=reference,
        work=work,
        bound=bound,
        summary="all 32 residual additions of a ResNet-50 training step, as a graph",
        source=_SOURCE,
    )
)
"""The registered op."""
