"""Guards in a template's syntax tree: every costly step passes through a filter that counts it.

In: the tree of a chat template. Out: the same tree with calls of the guard filters around outputs, loops, comparisons,
literals, slices and `~`. Statements that load other templates are refused. Imports Jinja; runs nothing.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from edgeinfer.errors import BadTemplate

# Filters of the guards; templates cannot write these names.
CHARGE, ADMIT, CONCATENATE = "guard charge", "guard admit", "guard concatenate"

_REFUSED = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
    nodes.EvalContextModifier,
)


class Guards(NodeTransformer):
    """Inserts guards into a tree; `visit` returns the replacement of a node. Raises BadTemplate for refused nodes."""

    def visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node | list[nodes.Node]:
        """`node` with guards in and around it."""
        if isinstance(node, _REFUSED):
            kind = type(node).__name__.lower()
            raise BadTemplate(f"the chat template uses {kind} in line {node.lineno}, which templates may not")
        self.generic_visit(node)
        match node:
            case nodes.Output():
                written = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
                return [_charge(written, node.lineno), node]
            case nodes.For():
                node.body.insert(0, _charge(1, node.lineno))
            case nodes.Compare():
                node.expr = _guard(CHARGE, node.expr)
            case nodes.Concat():
                return _guard(CONCATENATE, nodes.List(node.nodes, lineno=node.lineno))
            case nodes.List() | nodes.Dict():
                return _guard(ADMIT, node)
            case nodes.Tuple() if node.ctx == "load":
                return _guard(ADMIT, node)
            case nodes.Getitem() if isinstance(node.arg, nodes.Slice):
                return _guard(ADMIT, node)
        return node


def _guard(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _charge(weight: int, line: int) -> nodes.ExprStmt:
    nothing, amount = nodes.Const(None, lineno=line), nodes.Const(weight, lineno=line)
    return nodes.ExprStmt(nodes.Filter(nothing, CHARGE, [amount], [], None, None, lineno=line), lineno=line)
