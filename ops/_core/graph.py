"""A graph of ops: nodes with named inputs, outputs and parameters, data and control edges.

A value is written `node:output`; a graph input is written by its plain name. Graphs are
immutable: a pass takes one and returns another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from opgauge.ops._core.errors import GraphError


@dataclass(frozen=True)
class Node:
    """One op of a graph.

    inputs: value by input name, in order. outputs: output names.
    control: names of nodes that must run before this one, although no data flows.
    user: False for nodes that the framework adds (a variable, a return); passes skip them.
    """

    name: str
    op: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    params: Any = None
    control: tuple[str, ...] = ()
    user: bool = True

    def value(self, output: str) -> str:
        """The name of one of this node's values."""
        return f"{self.name}:{output}"


@dataclass(frozen=True)
class Graph:
    """Nodes, the names of the graph's inputs, and the value behind each output name.

    Raises GraphError for nodes that do not form a graph: a duplicate name, an
    input without a producer, a cycle.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:  # noqa: C901  one check per kind of malformed graph
        if len(self.by_name) < len(self.nodes):
            names = [node.name for node in self.nodes]
            twice = sorted({name for name in names if names.count(name) > 1})
            msg = f"nodes named twice: {', '.join(twice)}"
            raise GraphError(msg)
        for name in (*self.inputs, *self.by_name):
            if ":" in name:
                msg = f"{name!r}: a name must not contain a colon, which separates node and output"
                raise GraphError(msg)
        known = set(self.inputs) | {node.value(output) for node in self.nodes for output in node.outputs}
        for node in self.nodes:
            for name, value in node.inputs.items():
                if value not in known:
                    msg = f"{node.name}.{name} takes {value!r}, which nothing produces"
                    raise GraphError(msg)
            for before in node.control:
                if before not in self.by_name:
                    msg = f"{node.name} waits for {before!r}, which is not in the graph"
                    raise GraphError(msg)
        for name, value in self.outputs.items():
            if value not in known:
                msg = f"output {name} is {value!r}, which nothing produces"
                raise GraphError(msg)
        if len(self.order) < len(self.nodes):
            stuck = sorted(set(self.by_name) - set(self.order))
            msg = f"a cycle runs through {', '.join(stuck)}"
            raise GraphError(msg)

    @cached_property
    def by_name(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    def producer(self, value: str) -> Node | None:
        """The node that produces `value`; None for a graph input."""
        name, separator, _ = value.rpartition(":")
        return self.by_name[name] if separator else None

    def predecessors(self, node: Node) -> Iterator[str]:
        """Names of the nodes that must run before `node`, by data or control; may repeat."""
        for value in node.inputs.values():
            before = self.producer(value)
            if before is not None:
                yield before.name
        yield from node.control

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Node names in an executable order; the given order wherever possible.

        Incomplete if there is a cycle (which no constructed graph has).
        """
        waits = {node.name: len(set(self.predecessors(node))) for node in self.nodes}
        ready = [node.name for node in reversed(self.nodes) if waits[node.name] == 0]
        order: list[str] = []
        while ready:
            name = ready.pop()
            order.append(name)
            freed = []
            for after in self._successors[name]:
                waits[after] -= 1
                if waits[after] == 0:
                    freed.append(after)
            ready.extend(reversed(freed))
        return tuple(order)

    @cached_property
    def _successors(self) -> dict[str, list[str]]:
        after: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for before in dict.fromkeys(self.predecessors(node)):
                after[before].append(node.name)
        return after

    def consumers(self, value: str) -> list[str]:
        """Consumers of `value`, once per edge: node names, and `return:NAME` for graph outputs."""
        nodes = [node.name for node in self.nodes for taken in node.inputs.values() if taken == value]
        return nodes + [f"return:{name}" for name, taken in self.outputs.items() if taken == value]

    @cached_property
    def reach(self) -> dict[str, int]:
        """For each node, the set of nodes that it reaches (itself included), as a bit set over `order`."""
        position = {name: index for index, name in enumerate(self.order)}
        reach: dict[str, int] = {}
        for name in reversed(self.order):
            bits = 1 << position[name]
            for after in self._successors[name]:
                bits |= reach[after]
            reach[name] = bits
        return reach

    def reaches(self, start: str, end: str) -> bool:
        """Whether `end` must run after `start`; True for the node itself."""
        return bool(self.reach[start] >> self.order.index(end) & 1)

    def rewired(self, drop: str, changed: Iterable[Node], old: str, new: str) -> Graph:
        """This graph without node `drop`, with `changed` nodes replaced and each use of value `old` now `new`."""
        replaced = {node.name: node for node in changed}
        nodes = []
        for node in self.nodes:
            if node.name == drop:
                continue
            kept = replaced.get(node.name, node)
            if old in kept.inputs.values():
                inputs = {name: new if value == old else value for name, value in kept.inputs.items()}
                kept = replace(kept, inputs=inputs)
            nodes.append(kept)
        outputs = {name: new if value == old else value for name, value in self.outputs.items()}
        return Graph(tuple(nodes), self.inputs, outputs)
