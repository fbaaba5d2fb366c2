"""Hostile chat templates: none may run on, fill the memory, reach the host, or fail with anything but BadTemplate.

Time is a clock that advances one millisecond each time it is read, so a template that never looks at it would hang
here, and one that is stopped is stopped at the same step on every machine.
"""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable

import pytest

from edgeinfer.errors import BadTemplate
from edgeinfer.models.text import ChatTemplate, TemplateLimits
from edgeinfer.models.text import chat_template as module
from edgeinfer.models.text.template_meter import TemplateMeter
from tests.unit.models.text.jinja_judge import TODAY, render_unguarded

MESSAGES = [{"role": "user", "content": "Hi"}]
NAMESPACE = "{% set ns = namespace(x='a') %}"
LONG = "{% set a = 'x' * 900000 %}"

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested loops in a filter": "{% for a in range(99999) if range(99999) | select('in', [1]) | list %}{% endfor %}",
    "macros calling themselves twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}"
    ),
    "quadratic search": "{% set r = range(90000) | list %}{{ r | select('in', r) | list | length }}",
    "blocks that are set": "{% for a in range(99999) %}{% set b %}" + "{{ a }}" * 9 + "{% endset %}{% endfor %}",
    "recursive loop": "{% for a in [1] * 9 recursive %}{{ loop([1] * 9) if loop.depth < 9 }}{% endfor %}",
    "comparisons": LONG + "{% set b = 'x' * 900000 %}" + "{{ a == b }}" * 9000,
}
GREEDY = {
    "text times a number": "{{ 'a' * 10 ** 10 }}",
    "a number times text": "{{ 10 ** 10 * 'a' }}",
    "a list times a number": "{{ [1] * 10 ** 10 }}",
    "powers": "{{ 10 ** (10 ** 10) }}",
    "squares": "{% set ns = namespace(x=7) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling by +": NAMESPACE + "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": NAMESPACE + "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by join": NAMESPACE + "{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "doubling by str.join": NAMESPACE + "{% for i in range(99) %}{% set ns.x = ''.join([ns.x, ns.x]) %}{% endfor %}",
    "doubling by format": NAMESPACE + "{% for i in range(99) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubling by str.format": NAMESPACE + "{% for i in range(99) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "lists in lists": NAMESPACE + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "dicts in dicts": NAMESPACE + "{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
    "dicts by name": NAMESPACE + "{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}",
    "deep tuples": "{% set ns = namespace(x=()) %}{% for i in range(9999) %}{% set ns.x = (ns.x,) %}{% endfor %}",
    "range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "center": "{{ 'x' | center(10 ** 9) }}",
    "center of a constant": "{{ ['x' | center(1000000000)] }}",
    "indent": "{{ 'a\nb' | indent(10 ** 9) }}",
    "indent of many lines": "{{ ('a\n' * 100000) | indent(100000) }}",
    "format width": "{{ '%1000000000d' % 1 }}",
    "format width from an argument": "{{ '%*d' % (1000000000, 1) }}",
    "keys of a format without end": "{{ ('%(' * 300000) % messages }}",
    "a long key of a format": "{{ ('%(' ~ 'a' * 90000) % messages }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "format repeated": "{{ ('%s' * 30000) % (('a' * 30,) * 30000) }}{{ ('%(a)s' * 30000) % {'a': 'b' * 900000} }}",
    "str.format width": "{{ '{:1000000000}'.format(1) }}",
    "str.format width from an argument": "{{ '{:{}}'.format(1, 1000000000) }}",
    "replace": "{{ ('a' * 900000) | replace('a', 'b' * 1000) }}",
    "str.replace": "{{ ('a' * 900000).replace('a', 'b' * 1000) }}",
    "replace nothing": "{{ ('a' * 100000) | replace('', 'b' * 1000) }}",
    "join with a long separator": "{{ range(99999) | join('x' * 99999) }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "round": "{{ 5 | round(-10 ** 9) }}",
    "tojson indent": "{{ [[[1]]] | tojson(indent=10 ** 9) }}",
    "map": "{{ range(99999) | map('center', 100000) | list | length }}",
    "digits": "{{ ('9' * 900000) | int }}",
    "sum of lists": "{{ ([[1] * 1000] * 100) | sum(start=[]) }}",
    "strip": "{{ ('a' * 900000).strip('b' * 9000 + 'a') }}",
    "trim": "{{ ('a' * 900000) | trim('b' * 9000 + 'a') }}",
    "rfind": "{{ ('a' * 900000).rfind('a' * 200000 + 'b' + 'a' * 200000) }}",
    "output": "{% for i in range(99999) %}" + "x" * 500 + "{% endfor %}",
    "output of a macro": "{% macro m() %}{% for i in range(99999) %}"
    + "x" * 5000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "output that is set": "{% set y %}{% for i in range(99999) %}" + "x" * 5000 + "{% endfor %}{% endset %}",
    "many large values": "".join(f"{{% set a{i} = 'x' * 900000 %}}" for i in range(500)),
    "many split values": LONG.replace("x", "xy") + "".join(f"{{% set a{i} = a.split('x') %}}" for i in range(9)),
    "appended": LONG + "{% set b = [] %}{% for i in range(99999) %}{% set _ = b.append(a) %}{% endfor %}",
    "slices": LONG + "{% set b = a[::-1] %}" * 500,
    "macros without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "loops without end": "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "long source": "x" * 200_000,
    "brackets": "{{ " + "[" * 2000 + "]" * 2000 + " }}",
    "long sum": "{{ 1" + "+1" * 20_000 + " }}",
    "long number": "{{ " + "9" * 100_000 + " }}",
    "conditions": "{% if a %}" + "{% elif a %}" * 9000 + "{% endif %}",
}
ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by attr": "{{ ('' | attr('__class__')).__mro__ }}",
    "class by map": "{{ [''] | map(attribute='__class__') | map(attribute='__mro__') | list }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "class by attr format": "{{ ('{0.__class__.__mro__}' | attr('format'))('') }}",
    "class by format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "joiner": "{{ joiner.__init__.__globals__.os }}",
    "self": "{{ self.__init__.__globals__.__builtins__ }}",
    "context of self": "{{ self._TemplateReference__context.environment }}",
    "macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "loop": "{% for x in [1] %}{{ loop._iterator.gi_frame }}{% endfor %}",
    "function": "{{ raise_exception.__globals__.sys }}",
    "date function": "{{ strftime_now._now.__self__ }}",
    "subclasses of dict": "{{ dict.mro()[1] }}",
    "private name in a namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "hook in a namespace": "{{ namespace(__html__=range) | e }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from import": "{% from 'os' import system %}",
    "extends": "{% extends 'base' %}",
    "block": "{% block a %}{% endblock %}",
    "autoescape": "{% autoescape 'x' | center(10 ** 9) %}{% endautoescape %}",
    "do": "{% do messages.append(1) %}",
    "debug": "{% debug %}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update({'role': 'system'}) }}",
    "assign": "{% set messages.x = 1 %}",
    "encode": "{{ 'a'.encode() }}",
    "to_bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "fromkeys": "{{ dict.fromkeys([1]) }}",
    "unknown function": "{{ open('/etc/passwd') }}",
    "unknown filter": "{{ messages | pprint }}",
    "guards by name": "{{ ['x'] | map('guard nothing') | list }}",
}


def ticking() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) / 1000


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.usefixtures("uncollected")
def test_time_is_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TemplateMeter", lambda limits, weight: TemplateMeter(limits, weight, ticking()))
    with pytest.raises(BadTemplate, match="took longer than 3 s"):
        ChatTemplate({"default": ENDLESS[name]}, limits=TemplateLimits(seconds=3)).render(MESSAGES)


def test_time_that_others_take_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 30 programs for two cores refused conversations whose template takes a second form of them."""
    hours = itertools.count(step=3600)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(hours))
    template = ChatTemplate({"default": "{% if 'x' in messages[0].content %}x{% endif %}y{{ messages[0].role }}"})
    assert template.render([{"role": "assistant", "content": None}]) == "yassistant"


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.usefixtures("uncollected")
def test_memory_is_bounded(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadTemplate):
            ChatTemplate({"default": GREEDY[name]}, limits=TemplateLimits(seconds=60)).render(MESSAGES)
        assert tracemalloc.get_traced_memory()[1] < 150e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ESCAPES)
def test_the_host_is_out_of_reach(name: str) -> None:
    with pytest.raises(BadTemplate):
        ChatTemplate({"default": ESCAPES[name]}).render(MESSAGES)


def test_the_limit_grows_with_the_messages() -> None:
    limits = TemplateLimits(extra_chars=100)
    echo = ChatTemplate({"default": "{% for m in messages %}{{ m.content * 3 }}{% endfor %}"}, limits=limits)
    assert len(echo.render([{"role": "user", "content": "x" * 10_000}])) == 30_000
    with pytest.raises(BadTemplate, match="may use"):
        ChatTemplate({"default": "{{ 'x' * 1000 }}"}, limits=limits).render(MESSAGES)


def test_a_template_that_was_stopped_can_run_again() -> None:
    chat = ChatTemplate({"default": "{{ 'x' * messages[0].n }}"})
    with pytest.raises(BadTemplate):
        chat.render([{"role": "user", "content": "", "n": 10**9}])
    assert chat.render([{"role": "user", "content": "", "n": 3}]) == "xxx"


HONEST = [
    "{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b",
    "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}",
    "{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i) }}{{ loop.nextitem }}{% endfor %}",
    "{% macro m(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) m(3) %}{{ y }}{% endcall %}",
    "{% macro m(x, y=[1]) %}{{ x }}{{ y }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, z=4) }}",
    "{% for i in range(9) if i != 1 %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{{ loop.length }}{% endfor %}",
    "{% for i in [] %}{% else %}none{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% for i in [[1, []], [2, [[3, []]]]] recursive %}{{ i[0] }}({{ loop(i[1]) }}){% endfor %}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}{% set x | trim %}  c {% endset %}[{{ x }}]",
    "{% with x = (1, 2) %}{{ x[0] }}{{ x[::-1] }}{% endwith %}{% set a, b = 1, [2] %}{{ a ~ b ~ none }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}"
    "{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }}{{ ns.l }}",
    "{{ {'b': 1, 'a': '<ü>'} | tojson }}{{ {'b': 1, 'a': [2, {}]} | tojson(indent=1, sort_keys=true) }}",
    "{{ [3, 1, 2] | sort | map('string') | join('-') }}{{ messages | map(attribute='role') | first }}",
    "{{ [3, 1] | map('string') is string }}{{ 'y' if [] | select else 'n' }}{{ [0, 1] | select | list }}",
    "{{ '%05.1f|%s|%r' % (2.25, 'x', 'y') }}{{ '{:>4}{{}}{x}'.format(1, x=2) }}{{ '%s' | format(1) }}",
    "{{ messages[0]['content'].split('i') }}{{ messages[0].items() | list }}{{ messages[0].get('z', 'd') }}",
    "{{ undefined_name }}{{ undefined_name is defined }}{{ messages[9] }}{{ none_such | default('d') }}",
    "{{ 1 < 2 < 3 }}{{ 7 // 2 * 2.0 - 1 ** 3 }}{{ -7 % 3 }}{{ 1 / 4 }}{{ 2 ** 10 }}{{ 'a' * 3 }}{{ [1] * 2 }}",
    "{{ 'H' in messages[0].content and 'x' not in messages[0].content or 1 }}{{ (1, 'a') == (1, 'a') }}",
    "{{ ' a b ' | trim | title | replace('A', '<') | e }}{{ '<b>' | safe ~ '<i>' }}{{ ['<'] | join | length }}",
    "{{ [{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | list }}{{ [1, 2, 3] | batch(2, 0) | list }}",
    "{{ [{'a': 1}, {'a': 1}] | groupby('a') | list | length }}{{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ [1, 1] | unique | list }}{{ [2, 1] | min }}{{ [[1, 2], [3]] | last | first }}{{ 'ab' | last }}",
    "{{ 'a\nb' | indent(2) }}{{ 'abcdef' | truncate(3, true, '') }}{{ 3.14159 | round(2) }}{{ '7' | int + 1 }}",
    "{{ [1, 2.5] | sum }}{{ [[1], [2]] | map('first') | sum(start=1) }}{{ 'x' | center(5) }}|",
    "{{ [1, 2] | reverse | list }}{{ 'ab' | reverse }}{{ 'a b' | wordcount }}{{ -2 | abs }}{{ 'é' | urlencode }}",
    "  {%- if true %}\n  a\n  {% endif %}\n{# gone #}\n b {%+ if true %} c{% endif -%}   \n d",
    "{% raw %}{{ x }}{% endraw %}{{ [1, 2, 3][-2:] }}{{ 'abc'[::2] }}{{ messages[0]['role'][0] }}",
    "{{ strftime_now('%d %b %Y') }}{{ dict(a=1) }}{{ range(3) | list }}{{ range(2, 9, 3) }}{{ messages | length }}",
]


@pytest.mark.parametrize("source", HONEST)
def test_honest_templates_render_as_in_jinja(source: str) -> None:
    expected = render_unguarded(source, messages=MESSAGES)
    assert ChatTemplate({"default": source}, now=lambda: TODAY).render(MESSAGES) == expected


def test_forms_of_the_system_message_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that takes all of its time with the system message is not run again without it."""
    clock = itertools.count()
    monkeypatch.setattr(module.time, "thread_time", lambda: next(clock) / 1000)
    runs = []

    def slow(*_: object) -> str:
        runs.append(1)
        for _ in range(3000):
            next(clock)
        raise BadTemplate("it took too long")

    template = ChatTemplate({"default": ENDLESS["nested loops"]}, limits=TemplateLimits(seconds=2.0))
    monkeypatch.setattr(template, "_run_form", slow)
    with pytest.raises(BadTemplate, match="too long"):
        template.render([{"role": "system", "content": "Be brief."}, *MESSAGES])
    assert len(runs) == 1
