"""Random classes for the lifter: most of what it knows, and things next to it that it must refuse.

A class has no `merge`, so a fold calls `accumulate` for each row of a group, one after the other.
"""

from __future__ import annotations

import datetime
import decimal
import importlib.util
import random
import sys
from pathlib import Path
from typing import Any, Final

from foldflight.functions import Function, function_of

__all__ = ["Program", "import_program", "values_of"]

NAN, INF = float("nan"), float("inf")
_UTC: Final = datetime.UTC
VALUES: Final[dict[str, list[Any]]] = {
    "BIGINT": [2**63 - 1, -(2**63), 2**62 + 3, 2**53 + 1, 2**32, -1, 0, 1, 7],
    "INT": [2**31 - 1, -(2**31), -1, 0, 1, 5],
    "SMALLINT": [2**15 - 1, -(2**15), -1, 0, 1, 3],
    "DOUBLE": [NAN, INF, -INF, -0.0, 0.0, 5e-324, 0.1, 1.0, -2.5, 1.7976931348623157e308],
    "FLOAT": [NAN, INF, -INF, -0.0, 0.0, 1.5, -2.5],
    "BOOLEAN": [True, False],
    "STRING": ["", "a", "A", "aa", "\uffff", "\U0001f600", "\u00e9", "e\u0301"],
    "DATE": [
        datetime.date(1, 1, 1),
        datetime.date(9999, 12, 31),
        datetime.date(1970, 1, 1),
        datetime.date(2024, 2, 29),
    ],
    "TIMESTAMP_LTZ": [
        datetime.datetime(1900, 1, 1, tzinfo=_UTC),
        datetime.datetime(2262, 4, 12, 1, 2, 3, 456789, tzinfo=_UTC),
        datetime.datetime(1970, 1, 1, tzinfo=_UTC),
        datetime.datetime(2024, 3, 31, 1, 30, tzinfo=_UTC),
    ],
    "DECIMAL(12,2)": [decimal.Decimal(each) for each in ("9999999999.99", "-9999999999.99", "0.00", "0.01", "-7.50")],
    "DECIMAL(38,2)": [
        decimal.Decimal(each)
        # With the fourth and fifth, a rounding to less than 38 digits is not an overflow.
        for each in ("9" * 36 + ".99", f"-{'9' * 36}.99", "0.01", f"{'1234567890' * 3}123456.78", f"-{'98765' * 7}4.32")
    ],
    "DECIMAL(10,0)": [decimal.Decimal(each) for each in ("9999999999", "-9999999999", "0", "1", "42")],
}
_WHOLE: Final = ("BIGINT", "INT", "SMALLINT")
_FLOATING: Final = ("DOUBLE", "FLOAT")
_PYTHON: Final = {"BOOLEAN": "bool", "STRING": "str", "DATE": "datetime.date", "TIMESTAMP_LTZ": "datetime.datetime"}
_NAMES: Final = ("x", "y", "z")


def values_of(type_: str) -> list[Any]:
    """Return hostile values of a type, NULL among them."""
    return [*VALUES[type_], None]


class Program:
    """One random class.

    Args:
        seed: Its number.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        types = self.chance.choices(list(VALUES), k=self.chance.randrange(1, 4))
        if not set(types) & set(_WHOLE):
            types[0] = self.chance.choice(_WHOLE)
        self.types = dict(zip(_NAMES, types, strict=False))
        self.skips = self.chance.random() < 0.6
        self.fields: dict[str, tuple[str, str]] = {}
        self.retracted: list[str] = []
        self.may_retract = self.chance.random() < 0.5
        body = self._block(0)
        results = self._results()
        self.text = self._text(body, *results)

    # --- expressions ----------------------------------------------------------------------------------------------

    def _of(self, types: tuple[str, ...]) -> list[str]:
        return [name for name, type_ in self.types.items() if type_ in types]

    def _amount(self, depth: int = 0) -> str:
        """Return an integer."""
        kind = self.chance.randrange(9)
        names = self._of(_WHOLE)
        if kind < 4 or depth > 2:
            return self.chance.choice(names)
        if kind == 4:
            return str(self.chance.choice((0, 1, -1, 3, 1000, 2**31, 2**40, -(2**63), 2**64 + 1)))
        if kind == 5:
            return f"abs({self._amount(depth + 1)})"
        if kind == 6 and self._of(("BOOLEAN",)):
            return self.chance.choice(self._of(("BOOLEAN",)))
        if kind == 7:
            op = self.chance.choice(("min", "max"))
            return f"{op}({self._amount(depth + 1)}, {self._amount(depth + 1)})"
        return f"({self._amount(depth + 1)} {self.chance.choice('+-*')} {self._amount(depth + 1)})"

    def _condition(self, depth: int = 0) -> str:
        kind = self.chance.randrange(12)
        name = self.chance.choice(list(self.types))
        type_ = self.types[name]
        if kind == 0:
            return f"{name} is {self.chance.choice(('', 'not '))}None"
        if kind < 3 and depth < 2:
            return f"({self._condition(depth + 1)} {self.chance.choice(('and', 'or'))} {self._condition(depth + 1)})"
        if kind == 3 and depth < 2:
            return f"not {self._condition(depth + 1)}"
        if kind == 4 and type_ in _FLOATING:
            return self.chance.choice((f"math.isnan({name})", f"{name} == {name}", f"math.isfinite({name})"))
        if kind == 5 and self.fields and self.chance.random() < 0.4:
            return self._of_state()
        op = self.chance.choice(("<", "<=", ">", ">=", "==", "!="))
        alike = [each for each in self.types if self.types[each] == type_]
        if kind < 9 and len(alike) > 1:
            return f"{name} {op} {self.chance.choice(alike)}"
        if type_ in _WHOLE:
            return f"{self._amount(1)} {op} {self._amount(1)}"
        if type_ in _FLOATING:
            return f"{name} {op} {self.chance.choice(('0.0', '-0.0', '1.5', '2', '1e308', name + ' * 2.0'))}"
        if type_ == "BOOLEAN":
            return name
        if type_ == "STRING":
            return self.chance.choice((f"{name} {op} 'a'", f"{name} in ('', 'A')", f"{name} {op} '\\U0001f600'", name))
        return f"{name} {op} {self.chance.choice(alike)}"

    def _of_state(self) -> str:
        """Return a condition over the accumulator, most of which make the class depend on the order of rows."""
        name, (_, start) = self.chance.choice(list(self.fields.items()))
        if start == "None":
            return f"a.{name} is None"
        return self.chance.choice((f"a.{name} == {start}", f"a.{name}", f"not a.{name}"))

    # --- statements -----------------------------------------------------------------------------------------------

    def _block(self, depth: int) -> list[str]:
        lines = []
        for _ in range(self.chance.randrange(1, 4)):
            if depth < 2 and self.chance.random() < 0.35:
                lines += [f"if {self._condition()}:", *_indent(self._block(depth + 1))]
                if self.chance.random() < 0.5:
                    lines += ["else:", *_indent(self._block(depth + 1))]
            else:
                lines += self._statement()
        return lines

    def _field(self, prefix: str, type_: str, start: str) -> str:
        """Return a field of this kind, which may be one that is there."""
        alike = [
            name
            for name, field_of_name in self.fields.items()
            if field_of_name == (type_, start) and name.startswith(prefix)
        ]
        if alike and self.chance.random() < 0.5:
            return self.chance.choice(alike)
        name = f"{prefix}{len(self.fields)}"
        self.fields[name] = (type_, start)
        return name

    def _statement(self) -> list[str]:
        kind = self.chance.randrange(14)
        if kind < 4:
            type_ = self.chance.choice(("int", "Annotated[int, 'DECIMAL(38,0)']", "Annotated[int, 'INT']"))
            name = self._field("n", type_, self.chance.choice(("0", "0", "5")))
            return [f"a.{name} {self.chance.choice(('+=', '+=', '-='))} {self._amount()}"]
        if kind == 4:
            return [f"a.{self._field('c', 'int', '0')} += 1"]
        decimals = [name for name in self.types if self.types[name].startswith("DECIMAL")]
        if kind in (5, 6) and decimals:
            argument = self.chance.choice(decimals)
            wide = f"DECIMAL({self.chance.choice((38, 38, 14))},{self.types[argument].partition(',')[2]}"
            start = self.chance.choice(("0", "Decimal(0)", "Decimal('0.0')"))
            name = self._field("d", f"Annotated[Decimal, {wide!r}]", start)
            return [f"a.{name} {self.chance.choice(('+= ', '-= ', '+= -1 * ', '+= 1 * '))}{argument}"]
        if kind == 7:
            name = self._field("b", "bool", self.chance.choice(("True", "False")))
            return [f"a.{name} = {self.chance.choice((f'a.{name} and', f'a.{name} or', ''))} {self._condition(2)}"]
        if kind == 8:
            name = self._field("b", "bool", "False")
            return [f"a.{name} = {self.chance.choice(('True', 'True', 'False'))}"]
        if kind == 9 and self.chance.random() < 0.3:
            argument = self.chance.choice(list(self.types))
            return [f"a.{self._field('l', self._annotated(argument), 'None')} = {argument}"]
        if kind == 10 and self._of(_FLOATING):
            argument = self.chance.choice(self._of(_FLOATING))
            return [f"a.{self._field('f', 'float', '0.0')} += {argument} * 2.0"]
        return self._extreme()

    def _annotated(self, name: str) -> str:
        type_ = self.types[name]
        if type_ in _WHOLE:
            return "int | None"
        if type_ in _FLOATING:
            return "float | None"
        if type_.startswith("DECIMAL"):
            return f"Annotated[Decimal | None, {type_!r}]"
        return f"{_PYTHON[type_]} | None"

    def _extreme(self) -> list[str]:
        """Return a statement that keeps the least or greatest value, or something near to it."""
        argument = self.chance.choice(list(self.types))
        op = self.chance.choice("<>")
        guard = (
            ""
            if self.types[argument] not in _FLOATING or self.chance.random() < 0.2
            else f"{argument} == {argument} and "
        )
        if self.types[argument] in (*_WHOLE, *_FLOATING) and self.chance.random() < 0.4:
            is_whole = self.types[argument] in _WHOLE
            start = self.chance.choice(("0", "3", str(-(2**63))) if is_whole else ("1.5", "0.0", "-0.0"))
            name = self._field("m", "int" if is_whole else "float", start)
            value = self._amount() if is_whole else argument
            if guard:
                return [f"if {guard}{value} {op} a.{name}:", f"    a.{name} = {value}"]
            return [f"a.{name} = {'min' if op == '<' else 'max'}(a.{name}, {value})"]
        name = self._field("m", self._annotated(argument), "None")
        test = self.chance.choice(
            (f"{argument} {op} a.{name}", f"a.{name} {op} {argument}", f"not {argument} {op}= a.{name}")
        )
        return [f"if {guard}(a.{name} is None or {test}):", f"    a.{name} = {argument}"]

    # --- the class ------------------------------------------------------------------------------------------------

    def _results(self) -> tuple[str, str]:
        """Return the type of the result and the expression of `get_value`."""
        whole = [name for name, (type_, start) in self.fields.items() if type_ == "int" and start != "None"]
        if whole and self.chance.random() < 0.8:
            one, other = self.chance.choice(whole), self.chance.choice(whole)
            choices = (f"a.{one}", f"a.{one} if a.{one} > 3 else None", f"a.{one} - 7", f"a.{one} > a.{other}")
            field_name = self.chance.choice(choices)
            if ">" in field_name and "if" not in field_name:
                return "BOOLEAN", field_name
            if self.chance.random() < 0.4:
                return "DOUBLE", f"a.{one} / a.{other} if a.{other} else None"
            return "BIGINT", field_name
        texts = [name for name, (type_, _) in self.fields.items() if type_ == "str | None"]
        if texts:
            return "STRING", f"a.{texts[0]}"
        return "STRING", f"repr([{', '.join(map(_result_of, self.fields, self.fields.values()))}])"

    def _text(self, body: list[str], result: str, value: str) -> str:
        types = ", ".join(repr(each) for each in self.types.values())
        lines = [
            "import datetime, math",
            "from decimal import Decimal",
            "from typing import Annotated",
            "from foldflight import udaf",
            "class State:",
            *(f"    {name}: {type_}" for name, (type_, _) in self.fields.items()),
            "    def __init__(self):",
            *(f"        self.{name} = {start}" for name, (_, start) in self.fields.items()),
            f"@udaf(input_types=[{types}], result_type={result!r}, skip_nulls={self.skips}, name='p{self.seed}')",
            "class P:",
            "    def create_accumulator(self) -> State:",
            "        return State()",
            *self._method("accumulate", body),
        ]
        if self.may_retract:
            swapped_lines = [_inverse(line) if self.chance.random() < 0.97 else line for line in body]
            lines += self._method("retract", swapped_lines)
        lines += ["    def get_value(self, a):", f"        return {value}"]
        return "\n".join(lines) + "\n"

    def _method(self, name: str, body: list[str]) -> list[str]:
        return [f"    def {name}(self, a, {', '.join(self.types)}):", *(f"        {line}" for line in body)]

    def function(self, folder: Path) -> Function:
        """Return the function of the class, whose source is a file of the folder."""
        path = folder / f"lifted_program_{self.seed}.py"
        result = function_of(import_program(path, self.text).P)
        assert isinstance(result, Function)
        return result


def _result_of(name: str, field: tuple[str, str]) -> str:
    """Return a field in the form in which it is compared: zeros without a sign, DECIMALs with all digits."""
    if name.startswith("d"):
        return f"a.{name} + Decimal('0.00')"
    if "DECIMAL(38,0)" in field[0]:
        return f"int(a.{name})"  # a state has DECIMALs
    return f"(a.{name} if a.{name} is None else a.{name} + 0.0)" if "float" in field[0] else f"a.{name}"


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _inverse(line: str) -> str:
    return line.replace("+=", "\0").replace("-=", "+=").replace("\0", "-=")


def import_program(path: Path, text: str) -> Any:
    """Write a text to a file, and return its module."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
