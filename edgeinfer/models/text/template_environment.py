"""The Jinja environment of chat templates: the immutable sandbox, with a budget on everything.

In: a template's source, its variables, a `TemplateMeter`. Out: pieces of text. Jinja's sandbox limits what a template
can access, not how much it computes. Here `Guards` rewrites the syntax tree before compilation, so that outputs, loops,
comparisons, slices, literals and `~` pass through filters that count against the budget; statements that load other
templates are refused. The environment intercepts operators, calls, filters and tests. Only named functions, methods and
filters can be called. Jinja is imported with this module and nowhere else. Independent of chats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Template, Undefined, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from edgeinfer.errors import BadTemplate
from edgeinfer.models.text import template_operations as operations
from edgeinfer.models.text.template_meter import TemplateMeter

# Filters of the guards; templates cannot write these names.
CHARGE, ADMIT, OWN, CONCATENATE = "guard charge", "guard admit", "guard own", "guard concatenate"

_REFUSED = (
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
    nodes.EvalContextModifier,
)
# A variable that no template can name.
_METER = "the meter"
# Arguments that Jinja adds to calls inside a loop or block, for functions that take the context; unused here.
_CONTEXT_OPTIONS = ("_loop_vars", "_block_vars")
_MAX_RANGE = 100_000
_MAX_DATE_FORMAT = 200


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
                return [_charge_statement(written, node.lineno), node]
            case nodes.For():
                node.body.insert(0, _charge_statement(1, node.lineno))
            case nodes.Compare():
                node.expr = _guard(CHARGE, node.expr)
            case nodes.Concat():
                return _guard(CONCATENATE, nodes.List(node.nodes, lineno=node.lineno))
            case nodes.List():
                return _guard(OWN, node)
            case nodes.Dict():
                return _guard(ADMIT, node)
            case nodes.Tuple() if node.ctx == "load":
                return _guard(ADMIT, node)
            case nodes.Getitem() if isinstance(node.arg, nodes.Slice):
                return _guard(ADMIT, node)
        return node


def _guard(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _charge_statement(weight: int, line: int) -> nodes.ExprStmt:
    nothing, amount = nodes.Const(None, lineno=line), nodes.Const(weight, lineno=line)
    return nodes.ExprStmt(nodes.Filter(nothing, CHARGE, [amount], [], None, None, lineno=line), lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates run against the meter passed with their variables."""

    intercepted_binops = frozenset(operations.OPERATORS)

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            finalize=_finalize,
            extensions=[LoopControlExtension, _GenerationBlocks],
        )
        # A second environment calls the original filters and tests with the arguments they expect.
        plain = ImmutableSandboxedEnvironment()
        self.filters = {name: _guarded_filter(plain, name) for name in operations.FILTERS}
        self.filters |= {"tojson": _to_json, "from_json": _from_json, "attr": _attribute}
        self.filters |= {CHARGE: _charge, ADMIT: _admit, OWN: _own, CONCATENATE: _concatenate}
        self.tests = {name: _guarded_test(plain, name) for name in plain.tests}
        self.globals = {
            "range": _range,
            "dict": dict,
            "namespace": _Namespace,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": _raise_exception,
            "strftime_now": _DateWriter(now),
        }
        self._functions = tuple(self.globals.values())

    def compile_source(self, source: str) -> Template:
        """The template in `source`, with its guards in place. Raises what Jinja raises."""
        tree = self.parse(source)
        Guards().generic_visit(tree)
        tree.set_environment(self)
        return Template.from_code(self, self.compile(tree), self.globals)

    def render_pieces(self, template: Template, variables: Mapping[str, Any], meter: TemplateMeter) -> Iterator[str]:
        """The output of `template`, piece by piece. Raises BadTemplate or what Jinja raises."""
        return template.generate({**variables, _METER: meter})

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may get an attribute. What it does with the methods that change lists is checked later."""
        return (type(obj) is list and attr in operations.CHANGES) or super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A binary operator, within the budget."""
        return operations.binary(_meter(context), operator, left, right)

    def wrap_str_format(self, value: Any) -> None:
        """Leave `str.format` unchanged: only `call` runs it."""

    def call(self, context: Context, function: Any, /, *arguments: Any, **options: Any) -> Any:
        """Call what templates may call: macros, loops, the functions above and plain methods of plain values."""
        meter = _meter(context)
        for name in _CONTEXT_OPTIONS:
            options.pop(name, None)
        if isinstance(function, Macro | LoopContext | Undefined | Joiner):
            meter.enter()
            try:
                return meter.admit(context.call(function, *arguments, **options))
            finally:
                meter.leave()
        owner = function.__self__ if isinstance(function, MethodType | BuiltinMethodType) else None
        if isinstance(owner, Cycler | LoopContext) or any(function is known for known in self._functions):
            meter.tick()
            return meter.admit(function(*arguments, **options))
        if owner is None:
            raise BadTemplate(f"the chat template calls {type(function).__name__}, which templates may not")
        return self._call_method(meter, owner, function.__name__, function, arguments, options)

    def _call_method(
        self,
        meter: TemplateMeter,
        owner: Any,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        if isinstance(owner, list) and name in operations.CHANGES:
            operations.check_change(meter, owner, name, arguments)
            return function(*arguments, **options)
        arguments = operations.check_method(meter, owner, name, arguments)
        if isinstance(owner, str) and name == "format":
            meter.allow(operations.format_cost(meter, owner, [*arguments, *options.values()]))
            return meter.admit(SandboxedFormatter(self).vformat(str(owner), arguments, options))
        made = meter.admit(function(*arguments, **options))
        if isinstance(owner, str) and not isinstance(made, str):
            meter.charge(meter.weigh(made))
        return made


class _GenerationBlocks(Extension):
    """`{% generation %}`, which marks the assistant's words for training: its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in its own scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """Jinja's namespace without private names, and whose text does not show its contents."""

    def __init__(*arguments: Any, **values: Any) -> None:
        for name in dict(*arguments[1:], **values):
            _check_name(name)
        Namespace.__init__(*arguments, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


class _Once:
    """An iterator over values made by a filter; like the generator it replaces, it is true and can be used once."""

    def __init__(self, values: list[Any]) -> None:
        self._values = iter(values)

    def __iter__(self) -> Iterator[Any]:
        return self._values


class _DateWriter:
    """`strftime_now`: today's date in a format chosen by the template."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def __call__(self, pattern: str) -> str:
        if len(pattern) > _MAX_DATE_FORMAT:
            raise BadTemplate(f"the chat template's date format is longer than {_MAX_DATE_FORMAT} characters")
        return self._now().strftime(pattern)


def _meter(context: Context) -> TemplateMeter:
    meter: TemplateMeter = context.parent[_METER]
    return meter


@pass_context
def _finalize(context: Context, value: Any) -> str:
    return operations.text(_meter(context), value)


@pass_context
def _charge(context: Context, value: Any, weight: int = 1) -> Any:
    _meter(context).charge(weight)
    return value


@pass_context
def _admit(context: Context, value: Any) -> Any:
    return _meter(context).admit(value)


@pass_context
def _own(context: Context, value: Any) -> Any:
    return _meter(context).own(value)


@pass_context
def _concatenate(context: Context, values: list[Any]) -> str:
    return operations.concatenate(_meter(context), values)


@pass_context
def _to_json(context: Context, value: Any, *arguments: Any, **options: Any) -> str:
    # What a filter such as `map` made counts as a list, as for llama.cpp.
    value = list(value) if isinstance(value, _Once) else value
    return operations.to_json(_meter(context), value, *arguments, **options)


@pass_context
def _from_json(context: Context, value: Any) -> Any:
    return operations.from_json(_meter(context), value)


@pass_context
def _attribute(context: Context, value: Any, name: str) -> Any:
    return context.environment.getattr(value, name)


def _guarded_filter(plain: ImmutableSandboxedEnvironment, name: str) -> Callable[..., Any]:
    @pass_context
    def run(context: Context, value: Any, *arguments: Any, **options: Any) -> Any:
        meter = _meter(context)
        value = operations.check_filter(meter, name, value, arguments, options)
        made = plain.call_filter(name, value, arguments, options, context=context)
        return _Once(meter.admit(meter.drain(made))) if isinstance(made, Iterator) else meter.admit(made)

    return run


def _guarded_test(plain: ImmutableSandboxedEnvironment, name: str) -> Callable[..., bool]:
    @pass_context
    def run(context: Context, value: Any, *arguments: Any, **options: Any) -> bool:
        _meter(context).tick()
        return bool(plain.call_test(name, value, arguments, options, context=context))

    return run


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > _MAX_RANGE:
        raise BadTemplate(f"the chat template makes a range of {len(numbers)} numbers; it may use {_MAX_RANGE}")
    return numbers


def _raise_exception(message: object) -> None:
    raise BadTemplate(f"the chat template refuses these messages: {str(message)[:500]}")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise BadTemplate(f"the chat template stores {name!r} on a namespace, which templates may not")
