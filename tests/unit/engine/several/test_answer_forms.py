"""What answers say, as people write them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from edgeinfer.engine.several.answer_forms import form_of
from edgeinfer.errors import BadSetting


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        ("auto", "6 times 7 is 42.", Decimal(42)),
        ("auto", r"So \boxed{\frac{1}{2}} it is, in 3 steps", Decimal(2)),
        ("auto", r"\boxed{x} and then \boxed{y^{a}}", "y^{a}"),
        (
            "auto",
            "I tried 3 ways.\nThe answer is: **Paris**. It has 2 rivers.",
            "paris",
        ),
        ("auto", "Answer: B", "b"),
        ("auto", "The answer is 3.5.", Decimal("3.5")),
        ("auto", "  Yes,  of course. ", "yes, of course"),
        ("text", "Paris!", "paris"),
        ("text", "  ", None),
        ("number", "1,000 or 1000.0", Decimal(1000)),
        ("number", "-0", Decimal(0)),
        ("number", "\u22123.50 degrees", Decimal("-3.5")),
        ("number", "v2.1 has none of its own: x86", None),
        ("number", "none", None),
        ("json", '{"a": 1, "b": [2]}', '{"a": 1, "b": [2]}'),
        ("json", '```json\n{"b": [2],\n "a": 1}\n```', '{"a": 1, "b": [2]}'),
        ("json:b.0", '{"a": 1, "b": [2]}', "2"),
        ("json:c", '{"a": 1}', None),
        ("json:a.b", '{"a": 1}', None),
        ("json", "no JSON", None),
        ("json", "[" * 100_000, None),
        ("regex:result=(\\d+)", "result=1 result=23", "23"),
        ("regex:yes|no", "no, yes", "yes"),
        ("regex:(a)|b", "a b", "b"),
        ("regex:z", "a", None),
    ],
)
def test_what_a_text_says(form: str, text: str, said: object) -> None:
    assert form_of(form)(text) == said


def test_a_function_is_a_form() -> None:
    assert form_of(len)("four") == 4


@pytest.mark.parametrize("form", ["", "words", "text:x", "regex", "regex:", "regex:(", "json:"])
def test_forms_that_do_not_exist_are_refused_with_those_that_do(form: str) -> None:
    with pytest.raises(BadSetting, match=r"form of an answer|pattern"):
        form_of(form)


@pytest.mark.parametrize(
    ("text", "told"),
    [("40", "40"), ("1,000", "1000"), ("4e1", "40"), ("2.50", "2.5"), ("-300.0", "-300"), ("0.0", "0")],
)
def test_a_number_is_told_as_people_write_it(text: str, told: str) -> None:
    assert str(form_of("number")(text)) == told
    assert form_of("number")("9e99") == Decimal("9e99")
