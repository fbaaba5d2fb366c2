"""What templates are given of tools that read no list of them."""

from __future__ import annotations

import json
from datetime import datetime

from edgeinfer.models.text.message_forms import forms_of_tools

CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"properties": {"zone": {"type": "string"}}}}}


def test_a_text_of_functions_and_the_date_without_the_time() -> None:
    first, second, *others = forms_of_tools({"tools": [CLOCK]}, datetime(2026, 11, 27, 14, 11))
    assert first == {}
    assert second["datetime"] == "Nov 27 2026"
    (function,) = json.loads(str(second["functions"]))
    assert (function["name"], function["description"]) == ("clock", "")
    assert [form["datetime"] for form in others] == ["Nov 27 2026"] * 2
