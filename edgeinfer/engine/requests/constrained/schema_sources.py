"""What a JSON schema may be given as: a mapping, a text, a class that has one (pydantic), or True for any object.

In: one of these. Out: the schema as text. pydantic is not imported: its models are asked for their own schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from edgeinfer.errors import BadSetting


class HasJSONSchema(Protocol):
    """A class that knows its JSON schema, as pydantic's models do."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The schema."""


Schema = Mapping[str, object] | str | type[HasJSONSchema] | Literal[True] | None


def schema_text(schema: object) -> str:
    """A schema as text. Raises BadSetting for what is none."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, type):
        tell = getattr(schema, "model_json_schema", None)
        if tell is None:
            raise BadSetting(
                f"the class {schema.__name__} is no schema; give a JSON schema, a pydantic model, "
                f"or of other classes pydantic.TypeAdapter({schema.__name__}).json_schema()"
            )
        schema = tell()
    try:
        return json.dumps({"type": "object"} if schema is True else schema)
    except (TypeError, ValueError, RecursionError) as reason:
        raise BadSetting(f"the schema is no JSON: {reason}") from None
