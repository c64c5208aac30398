"""Structs as arguments of compiled code, which are dicts in Python: their fields by constant names."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.extending import intrinsic, register_model


class Struct(types.Type):
    """The numba type of a struct.

    Args:
        fields: The types of its fields by name.
    """

    def __init__(self, fields: dict[str, types.Type]) -> None:
        self.fields = fields
        super().__init__(name=f"Struct({fields})")


@register_model(Struct)
class _StructModel(models.StructModel):
    def __init__(self, manager: Any, type_: Struct) -> None:
        super().__init__(manager, type_, [(f"f{index}", each) for index, each in enumerate(type_.fields.values())])


@intrinsic(prefer_literal=True)
def field_of(typing: Any, struct: Any, name: Any) -> Any:
    """Return the field of a constant name."""
    if not isinstance(name, types.StringLiteral):
        return None
    index = list(struct.fields).index(name.literal_value)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return getattr(context.make_helper(builder, struct, value=arguments[0]), f"f{index}")

    return signature(struct.fields[name.literal_value], struct, name), generate
