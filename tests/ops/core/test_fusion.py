"""FuseAddToOutput: its twelve conditions one by one, the cycle it must not close, and random graphs."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opgauge.ops._core.fusion import ADDEND, Fusion, fuse_add_to_output
from opgauge.ops._core.graph import Graph, Node

PRIME = (1 << 61) - 1
BN_OUTPUTS = ("y", "mean", "inv_variance")


def bn(name: str, x: str, **extra: str) -> Node:
    """A normalization of `x`."""
    return Node(name, "normalization", {"x": x, **extra}, BN_OUTPUTS)


def f(name: str, *inputs: str, control: tuple[str, ...] = ()) -> Node:
    """An op that the pass knows nothing of."""
    return Node(name, "f", {f"in_{index}": value for index, value in enumerate(inputs)}, ("y",), control=control)


def add(name: str, *terms: str, control: tuple[str, ...] = ()) -> Node:
    """An addition."""
    inputs = {f"in_{index}": value for index, value in enumerate(terms)}
    return Node(name, "add_n", inputs, ("out",), control=control)


def evaluate(graph: Graph) -> dict[str, int]:
    """The graph's outputs in exact arithmetic modulo a prime, every op a hash of what it is and takes."""
    values = {name: _hash(name) for name in graph.inputs}
    for name in graph.order:
        node = graph.by_name[name]
        taken = {key: values[value] for key, value in node.inputs.items()}
        addend = taken.pop(ADDEND, 0)
        for output in node.outputs:
            if node.op == "add_n":
                made = sum(taken.values()) % PRIME
            else:
                made = _hash(node.op, name, output, *(f"{key}={value}" for key, value in taken.items()))
            if output in ("y", "dx"):
                made = (made + addend) % PRIME
            values[node.value(output)] = made
    return {name: values[value] for name, value in graph.outputs.items()}


def _hash(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:8]) % PRIME


def fused(*nodes: Node, returns: str = "s:out", supported: bool = True) -> Fusion:
    """Run the pass over a graph with inputs x and z; `returns` is its output."""
    graph = Graph(nodes, ("x", "z"), {"out": returns})
    result = fuse_add_to_output(graph) if supported else fuse_add_to_output(graph, {})
    assert evaluate(result.graph) == evaluate(graph)
    return result


def test_fuses_into_the_first_term() -> None:
    """An addition whose first term is a normalization becomes its addend, and the output keeps its name."""
    result = fused(bn("n", "x"), f("g", "x"), add("s", "n:y", "g:y"))
    assert result.fused == 1
    assert result.graph.by_name["n"].inputs[ADDEND] == "g:y"
    assert "s" not in result.graph.by_name
    assert result.graph.outputs == {"out": "n:y"}


def test_prefers_the_first_term() -> None:
    """Where both terms could take the other, the first does."""
    result = fused(bn("a", "x"), bn("b", "z"), add("s", "b:y", "a:y"))
    assert result.reports[0].fused_into == "b"


def test_falls_back_to_the_second_term() -> None:
    """Where only the second term can take the other, it does."""
    result = fused(f("g", "x"), bn("n", "z"), add("s", "g:y", "n:y"))
    assert result.reports[0].fused_into == "n"


def test_fuses_conv_data_grad() -> None:
    """dx of conv_data_grad takes an addend too."""
    conv = Node("c", "conv_data_grad", {"dy": "x", "filter": "z"}, ("dx",))
    assert fused(conv, f("g", "x"), add("s", "c:dx", "g:y")).fused == 1


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ((bn("n", "x"), replace(add("s", "n:y", "z"), user=False)), "(1)"),
        ((bn("n", "x"), f("g", "x"), add("s", "n:y", "z", control=("g",))), "(2)"),
        ((bn("n", "x"), add("s", "n:y", "z"), f("g", "x", control=("s",))), "(3)"),
        ((bn("n", "x"), add("s", "n:y", "z", "x")), "(6)"),
        ((bn("n", "x"), add("s", "n:y")), "(6)"),
        ((bn("n", "x"), f("g", "n:mean"), add("s", "n:y", "g:y")), "(7)"),
        ((bn("n", "x"), f("g", "x", control=("n",)), add("s", "n:y", "g:y")), "(7)"),
        ((bn("n", "x"), add("s", "n:y", "n:y")), "(7)"),
        ((bn("n", "x"), add("s", "n:y", "n:mean")), "(7)"),
        ((replace(bn("n", "x"), user=False), add("s", "n:y", "z")), "(8)"),
        ((f("n", "x"), add("s", "n:y", "z")), "(9)"),
        ((bn("n", "x"), add("s", "n:mean", "z")), "(10)"),
        ((bn("n", "x"), f("g", "n:y"), add("s", "n:y", "z")), "(11)"),
        ((bn("n", "x", add_to_output="z"), add("s", "n:y", "z")), "(12)"),
    ],
)
def test_each_condition_alone_prevents(nodes: tuple[Node, ...], reason: str) -> None:
    """Breaking one condition leaves the addition alone, and the report names that condition first."""
    result = fused(*nodes)
    assert result.fused == 0
    assert reason in result.reports[0].reasons[0]


def test_an_unrelated_op_named_like_an_addition_is_left_alone() -> None:
    """Only `add_n` is looked at (4)."""
    graph = Graph((bn("n", "x"), f("s", "n:y", "z")), ("x", "z"), {"out": "s:y"})
    assert fuse_add_to_output(graph) == Fusion(graph, ())


def test_nothing_is_supported() -> None:
    """With an empty table nothing fuses (9)."""
    assert fused(bn("n", "x"), add("s", "n:y", "z"), supported=False).fused == 0


def test_a_returned_term_is_not_overwritten() -> None:
    """A term that is also a graph output must keep its value (11)."""
    graph = Graph((bn("n", "x"), add("s", "n:y", "z")), ("x", "z"), {"out": "s:out", "raw": "n:y"})
    assert fuse_add_to_output(graph).fused == 0


def test_two_legal_fusions_do_not_close_a_cycle() -> None:
    """Each addition alone may fuse; both together would make A wait for D and C wait for B."""
    nodes = (
        bn("A", "x"),
        bn("C", "z"),
        f("B", "C:mean"),
        f("D", "A:mean"),
        add("add1", "A:y", "B:y"),
        add("add2", "C:y", "D:y"),
    )
    graph = Graph(nodes, ("x", "z"), {"one": "add1:out", "two": "add2:out"})
    for alone in ("one", "two"):
        kept = Graph(nodes, ("x", "z"), {alone: graph.outputs[alone]})
        assert fuse_add_to_output(kept).fused >= 1
    result = fuse_add_to_output(graph)
    assert result.fused == 1
    assert "(7)" in result.reports[1].reasons[0]
    assert evaluate(result.graph) == evaluate(graph)


def test_a_chain_of_additions_fuses_whole() -> None:
    """add(add(A, x), C) fuses both additions, one into each normalization, whatever the order of writing."""
    nodes = (bn("A", "x"), bn("C", "z"), add("one", "A:y", "x"), add("two", "one:out", "C:y"))
    for order in (nodes, nodes[::-1]):
        graph = Graph(order, ("x", "z"), {"out": "two:out"})
        result = fuse_add_to_output(graph)
        assert result.fused == 2
        assert evaluate(result.graph) == evaluate(graph)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of normalizations, data gradients, other ops and additions, with control edges."""
    values = ["x", "z"]
    nodes: list[Node] = []
    for index in range(draw(st.integers(2, 14))):
        name = f"n{index}"
        kind = draw(st.sampled_from(["normalization", "conv_data_grad", "f", "add_n", "add_n", "add_n"]))
        count = draw(st.integers(1, 3)) if kind == "f" else 2 if kind == "add_n" else 1
        taken = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        before = [node.name for node in nodes]
        waits = bool(before) and draw(st.booleans()) and (kind != "add_n" or draw(st.booleans()))
        control = (draw(st.sampled_from(before)),) if waits else ()
        outputs = {
            "normalization": BN_OUTPUTS,
            "conv_data_grad": ("dx",),
            "f": ("y", "w"),
            "add_n": ("out",),
        }[kind]
        inputs = {f"in_{position}": value for position, value in enumerate(taken)}
        nodes.append(Node(name, kind, inputs, outputs, control=control))
        values += [nodes[-1].value(output) for output in outputs]
    consumed = {value for node in nodes for value in node.inputs.values()}
    loose = [value for value in values[2:] if value not in consumed]
    shuffled = draw(st.permutations(nodes))
    return Graph(tuple(shuffled), ("x", "z"), {f"out{index}": value for index, value in enumerate(loose)})


@given(graphs())
@settings(max_examples=300)
def test_random_graphs_keep_their_meaning(graph: Graph) -> None:
    """The pass keeps outputs and their names, leaves no cycle, reports every addition, and is idempotent."""
    result = fuse_add_to_output(graph)
    assert evaluate(result.graph) == evaluate(graph)
    assert len(result.graph.order) == len(result.graph.nodes)
    assert {report.add for report in result.reports} == {node.name for node in graph.nodes if node.op == "add_n"}
    assert len(result.graph.nodes) == len(graph.nodes) - result.fused
    again = fuse_add_to_output(result.graph)
    assert again.fused == 0
    assert again.graph == result.graph


@given(graphs())
@settings(max_examples=100)
def test_random_graphs_are_left_with_nothing_to_fuse(graph: Graph) -> None:
    """Every addition that is left has a reason for each of its terms."""
    for report in fuse_add_to_output(graph).reports:
        assert report.fused_into is not None or report.reasons
