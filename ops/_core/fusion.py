"""The pass FuseAddToOutput: an addition becomes an operand of the op that produces one of its terms.

An unfused addition reads two tensors and writes one. A producer that takes the other
term as its `add_to_output` reads one more tensor and writes the sum instead of its output.

Twelve conditions must hold for an addition A, a term's producer T and the other term O.
Their numbers follow the source of the design document and appear in the report:
 1 A is a user op; 2 A has no incoming control edge; 3 A has no outgoing control edge; 4 A is `add_n`;
 5 A was not rewired meanwhile; 6 A has exactly two terms; 7 T does not reach O, nor is T O's
 producer; 8 T was not rewired meanwhile; 9 T's op is supported; 10 the term is the
 supported output; 11 A is the term's only consumer; 12 T has no `add_to_output` yet.
Conditions 5 and 8 protect a pass that decides on a stale graph. This pass rewrites immediately and
decides on the current graph, including reachability, so they hold by
construction. With stale reachability two legal fusions can close a cycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opgauge.ops._core.graph import Graph, Node

ADDEND = "add_to_output"
"""Input that takes the other term of a fused addition."""
SUPPORTED: Mapping[str, str] = {"conv_data_grad": "dx", "normalization": "y"}
"""Fusible ops and the output that the addend is added to."""
TERMS = 2
"""Terms of an addition that can be fused."""


@dataclass(frozen=True)
class AddReport:
    """Outcome of one addition: the node it was fused into, or the reason why not, term by term."""

    add: str
    fused_into: str | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fusion:
    """The rewritten graph, and a report for every `add_n` of the original one."""

    graph: Graph
    reports: tuple[AddReport, ...]

    @property
    def fused(self) -> int:
        """Number of additions fused away."""
        return sum(report.fused_into is not None for report in self.reports)


def fuse_add_to_output(graph: Graph, supported: Mapping[str, str] = SUPPORTED) -> Fusion:
    """Fuse every eligible addition, in topological order, until none is left.

    The result computes the same outputs under the same names, is acyclic, and running
    the pass on it again changes nothing. `supported` maps ops that take `add_to_output`
    to the output that it is added to.
    """
    reports: dict[str, AddReport] = {}
    changed = True
    while changed:
        changed = False
        for name in graph.order:
            node = graph.by_name.get(name)
            if node is None or node.op != "add_n":
                continue
            graph, report = _fuse_one(graph, node, supported)
            reports[name] = report
            changed = changed or report.fused_into is not None
    return Fusion(graph, tuple(reports[name] for name in sorted(reports)))


def _fuse_one(graph: Graph, add: Node, supported: Mapping[str, str]) -> tuple[Graph, AddReport]:
    reason = _reject_add(graph, add)
    if reason is not None:
        return graph, AddReport(add.name, None, (reason,))
    terms = list(add.inputs.values())
    reasons = []
    for term, other in (terms, terms[::-1]):
        reason = _reject_target(graph, add, term, other, supported)
        if reason is None:
            producer = graph.by_name[term.rpartition(":")[0]]
            fused = replace(producer, inputs={**producer.inputs, ADDEND: other})
            rewired = graph.rewired(add.name, (fused,), add.value(add.outputs[0]), term)
            return rewired, AddReport(add.name, producer.name)
        reasons.append(f"{term}: {reason}")
    return graph, AddReport(add.name, None, tuple(reasons))


def _reject_add(graph: Graph, add: Node) -> str | None:
    if not add.user:
        return "(1) it is not a user op"
    if add.control:
        return f"(2) it waits for {', '.join(add.control)}"
    waiting = [node.name for node in graph.nodes if add.name in node.control]
    if waiting:
        return f"(3) {', '.join(waiting)} waits for it"
    if len(add.inputs) != TERMS:
        return f"(6) it has {len(add.inputs)} terms"
    return None


def _reject_target(  # noqa: PLR0911  a return per condition
    graph: Graph, add: Node, term: str, other: str, supported: Mapping[str, str]
) -> str | None:
    target, source = graph.producer(term), graph.producer(other)
    if target is None:
        return "(8) a graph input has no producer to fuse into"
    if source is not None and graph.reaches(target.name, source.name):
        return f"(7) {target.name} comes before {source.name}, which gives the other term"
    if not target.user:
        return f"(8) {target.name} is not a user op"
    if target.op not in supported:
        return f"(9) {target.op} takes no {ADDEND}"
    if term != target.value(supported[target.op]):
        return f"(10) only {supported[target.op]} of {target.op} can be added to"
    others = [name for name in graph.consumers(term) if name != add.name]
    if others:
        return f"(11) it is also used by {', '.join(others)}"
    if ADDEND in target.inputs:
        return f"(12) {target.name} already adds {target.inputs[ADDEND]}"
    return None
