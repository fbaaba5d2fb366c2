"""Further ways out of a chat template, by filters that look up names: none leads anywhere."""

from __future__ import annotations

import pytest

from edgeinfer.errors import BadTemplate
from edgeinfer.models.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hello"}]
ESCAPES = {
    "groupby": "{{ [''] | groupby('__class__') }}",
    "groupby of a path": "{{ [[1]] | groupby('__class__.__mro__') | list }}",
    "sort": "{{ ['', 'a'] | sort(attribute='__class__') }}",
    "unique": "{{ ['', 'a'] | unique(attribute='__class__') | list }}",
    "sum": "{{ [''] | sum(attribute='__class__') }}",
    "join": "{{ [''] | join(',', attribute='__class__') }}",
    "min": "{{ ['a', 'b'] | min(attribute='__class__') }}",
    "map of attr": "{{ (([''] | map('attr', '__class__') | list)[0]).__mro__ }}",
    "selectattr": "{{ ([''] | selectattr('__class__') | map(attribute='__class__') | first).__mro__ }}",
    "percent with a mapping": "{{ '%(__class__)s' % messages[0] }}",
    "format of a filter": "{{ ('%(__class__)s' | format(a=1)) }}",
    "format with an attribute of an argument": "{{ '{a.__init__.__globals__}'.format(a=cycler) }}",
    "format with an index": "{{ '{0[__class__]}'.format('') }}",
    "formatter of a conversion": "{{ '{0!r:{1}}'.format('', 10 ** 9) }}",
    "attr in pieces": "{{ ('' | attr('__cla' ~ 'ss__')).mro() }}",
    "attr by escapes": "{{ ('' | attr('\\x5f\\x5fclass\\x5f\\x5f')).mro() }}",
    "macro's caller": "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
    "macro's arguments": "{% macro m() %}{{ varargs.__class__.__mro__ }}{% endmacro %}{{ m(1) }}",
    "frame of a generator": "{{ ([1] | map('abs')).gi_frame.f_globals }}",
    "loop's context": "{% for a in [1] %}{{ loop._context.environment }}{% endfor %}",
    "undefined": "{{ nothing._fail_with_undefined_error.__globals__ }}",
    "undefined's class": "{{ nothing.__class__.__init__.__globals__ }}",
    "a message": "{{ messages[0].__class__.__mro__[1].__subclasses__() }}",
    "a tool": "{{ tools.__class__ .__base__.__subclasses__() }}",
    "with": "{% with a = ''.__class__ %}{{ a.__mro__ }}{% endwith %}",
    "filter block": "{% filter attr('__class__') %}x{% endfilter %}{% filter pprint %}{% endfilter %}",
    "test of a callable": "{{ range.__self__ }}{{ range.__class__.__mro__ }}",
    "the meter": "{{ context['the meter'].limits }}",
    "namespace of the meter": "{{ self._Context__self }}",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_names_that_lead_out_are_not_found(name: str) -> None:
    """Refused, or what comes out says nothing of Python."""
    try:
        text = ChatTemplate({"default": ESCAPES[name]}).render(MESSAGES)
    except BadTemplate:
        return
    assert not any(word in text for word in ("class", "object", "built-in", "function", "module", "globals", "0x"))
