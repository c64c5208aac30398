"""Which functions lift, as the table of docs/explanation/lift.md: built-in ones, the gallery and the examples."""

import pathlib
import re

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.ext.lift.descriptions import lift_text, lifted_of
from foldflight.functions import Function, Registry

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLES = (
    "weighted_avg", "weighted_mean", "largest", "different", "euros", "moved", "from_beam", "from_snowflake"
)  # fmt: skip
VALUES = {"low": 0.0, "high": 1.0, "half_life_s": 60.0, "steps": "a,b", "within_s": 60.0}
TYPES = (pa.int64(), pa.float64(), pa.decimal128(18, 2), pa.string(), pa.bool_())
NAMES = ("integers", "floats", "decimals", "texts", "booleans")


def lift_table() -> str:
    """Return the table without its header."""
    built_in = Registry()
    lines = [_built_in(built_in[name]) for name in sorted(built_in) if isinstance(built_in[name], Function)]
    gallery = sorted(path.stem for path in (ROOT / "examples" / "gallery").glob("*.py") if path.stem != "__init__")
    for module in (*(f"examples.{name}" for name in EXAMPLES), *(f"examples.gallery.{name}" for name in gallery)):
        lines += [_authored(each) for each in Registry.load([module]).authored if isinstance(each, Function)]
    return "\n".join(lines) + "\n"


def _built_in(function: Function) -> str:
    """Return the line of a built-in function, for each type of argument that it takes."""
    outcomes: dict[str, str] = {}
    for name, type_ in zip(NAMES, TYPES, strict=True):
        try:
            outcomes[name] = lifted_of(lift_text(function.bind([type_], {})))[1]
        except RejectedError:  # it does not take this type
            continue
    lifted = [name for name, why in outcomes.items() if not why]
    reasons = "; ".join(f"{name}: {why}" for name, why in outcomes.items() if why)
    if not lifted:
        reasons = next(iter(outcomes.values()))
    return _line(function.name, ", ".join(lifted) or "no", reasons)


def _authored(function: Function) -> str:
    types = function.input_types or [pa.int64()] * len(function.input_names)
    literals = {each.name: VALUES.get(each.name, 1) for each in function.parameters if each.required}
    why = lifted_of(lift_text(function.bind(types, literals)))[1]
    return _line(function.name, "no" if why else "yes", why)


def _line(name: str, lifted: str, why: str) -> str:
    return f"| `{name}` | {lifted} | {re.sub(r', [a-z_]+[.]py:[0-9]+', '', why)} |"
