"""Graphs: what is refused, and in which order nodes run."""

from __future__ import annotations

import pytest

from opgauge.ops._core.errors import GraphError
from opgauge.ops._core.graph import Graph, Node


def node(name: str, *inputs: str, control: tuple[str, ...] = ()) -> Node:
    """A node of op `f` with one output `y`."""
    return Node(name, "f", {f"in_{index}": value for index, value in enumerate(inputs)}, ("y",), control=control)


def test_order_respects_data_and_control() -> None:
    """A node runs after what it takes and after what it waits for."""
    graph = Graph((node("c", "b:y"), node("b", "x", control=("a",)), node("a", "x")), ("x",))
    assert graph.order == ("a", "b", "c")


def test_order_is_as_written_where_possible() -> None:
    """Independent nodes keep their written order."""
    graph = Graph((node("b", "x"), node("a", "x"), node("c", "b:y")), ("x",))
    assert graph.order.index("b") < graph.order.index("c")
    assert set(graph.order) == {"a", "b", "c"}


def test_reach_follows_control_edges() -> None:
    """Reachability runs along data and control edges, and a node reaches itself."""
    graph = Graph((node("a", "x"), node("b", "x", control=("a",)), node("c", "b:y")), ("x",))
    assert graph.reaches("a", "c")
    assert graph.reaches("a", "a")
    assert not graph.reaches("c", "a")


def test_consumers_count_edges_and_returns() -> None:
    """A value taken twice by a node counts twice; a graph output counts as a consumer."""
    graph = Graph((node("a", "x"), node("b", "a:y", "a:y")), ("x",), {"out": "a:y"})
    assert graph.consumers("a:y") == ["b", "b", "return:out"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "message"),
    [
        ((node("a", "x"), node("a", "x")), {}, "named twice: a"),
        ((node("a", "z"),), {}, "takes 'z'"),
        ((node("a", "b:y"),), {}, "takes 'b:y'"),
        ((node("a", "x", control=("b",)),), {}, "waits for 'b'"),
        ((node("a", "x"),), {"out": "b:y"}, "output out"),
        ((node("a", "b:y"), node("b", "a:y")), {}, "a cycle runs through a, b"),
        ((node("a", "x", control=("b",)), node("b", "a:y")), {}, "a cycle runs through a, b"),
        ((node("a:b", "x"),), {}, "must not contain a colon"),
    ],
)
def test_what_is_not_a_graph(nodes: tuple[Node, ...], outputs: dict[str, str], message: str) -> None:
    """Each way of not being a graph is refused with a message that names the culprit."""
    with pytest.raises(GraphError, match=message):
        Graph(nodes, ("x",), outputs)
