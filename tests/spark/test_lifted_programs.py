"""Random programs in Spark: a lifted query has the results of a fold, which calls the author's method for each row."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from foldflight import connect
from foldflight.client import Functions
from foldflight.ext.lift.descriptions import lift_text, lifted_of
from foldflight.server.run.lifecycle import serving
from foldflight.spark import group_by, register, sql
from tests.laws.lifted_programs import Program, values_of
from tests.spark.conftest import answers
from tests.wire.kit import eventually

KEYS = {"bigint": [0, 1, 2, None], "double": [float("nan"), -0.0, 0.0, 1.5, None], "string": ["", "\u00e9", "z", None]}


class Case:
    """One program, and rows for it.

    Args:
        program: The program.
        folder: Where its source is written.
    """

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.function = program.function(folder)
        chance = random.Random(program.seed)
        self.is_hostile = chance.random() < 0.5
        lift, _ = lifted_of(lift_text(self.function.bind(self.function.input_types or (), {})))
        self.lifts = lift is not None
        self.retracts = self.lifts and not lift.no_retract_reason and chance.random() < 0.6
        self.key = chance.choice(list(KEYS))
        filters = [f"{name} IS NOT NULL" for name in program.types] + ["kind = '+I'", "row > 10", "NOT (k <=> NULL)"]
        self.filter = chance.choice(filters) if not self.retracts and chance.random() < 0.4 else None
        self.rows = self._rows(chance)
        self.has_result = False

    @property
    def schema(self) -> str:
        """The columns of the rows."""
        types = ", ".join(f"{name} {type_}" for name, type_ in self.program.types.items())
        return f"row int, k {self.key}, kind string, {types}"

    def _rows(self, chance: random.Random) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for place in range(40):
            inserted_rows = [row for row in rows if row[2] == "+I"]
            if self.retracts and inserted_rows and chance.random() < 0.3:
                row = chance.choice(inserted_rows)
                rows.remove(row)
                rows += [(*row[:2], "+U", *row[3:]), (place, row[1], "-D", *row[3:])]
            else:
                values = [self._value(chance, type_) for type_ in self.program.types.values()]
                rows.append((place, chance.choice(KEYS[self.key]), "+I", *values))
        return rows

    def _value(self, chance: random.Random, type_: str) -> Any:
        values = values_of(type_)
        if self.is_hostile:
            return chance.choice(values)
        numbers = [each for each in values[:-1] if not isinstance(each, int) or abs(each) < 10]
        return chance.choice([each for each in numbers if "9999999" not in str(each)])

    def query(self, spark: Any, plan: str, functions: Functions | None = None) -> Any:
        """Return the query with a plan, of embedded functions or others."""
        df = spark.createDataFrame(self.rows, self.schema)
        use = (functions or connect([self.function.cls]))[self.function.name](*self.program.types)
        if self.filter is not None:
            use = use.where(self.filter)
        kinds = {"row_kind": "kind"} if self.retracts else {}
        return group_by(df, "k", plan=plan, **kinds).agg(o=use)

    def result(self, spark: Any, plan: str, functions: Functions | None = None) -> list[str] | str:
        """Return the rows of the result as text, sorted, or the error."""
        try:
            result = self.query(spark, plan, functions).collect()
        except Exception as error:  # of Spark, PySpark or foldflight, depending on where it is raised
            return f"error: {error}"
        return sorted(repr(tuple(each + 0.0 if isinstance(each, float) else each for each in row)) for row in result)

    def difference(self, spark: Any, functions: Functions | None = None) -> str:
        """Return how the results of a lifted query and of an embedded fold differ; empty if they do not."""
        lifted_result, fold_result = self.result(spark, "lifted", functions), self.result(spark, "fold")
        self.has_result = not isinstance(lifted_result, str)
        if lifted_result == fold_result or (isinstance(lifted_result, str) and isinstance(fold_result, str)):
            return ""
        if self.is_hostile and isinstance(lifted_result, str) and "OVERFLOW" in lifted_result:
            return ""  # without `merge`, the accumulator of a fold may hold what its state cannot
        return f"{self.program.text}\n{self.rows}\nfilter {self.filter}\nlifted {lifted_result}\nfolded {fold_result}"


def cases(seeds: range, folder: Path) -> list[Case]:
    """Return the programs that lift."""
    return [each for each in (Case(Program(seed), folder) for seed in seeds) if each.lifts]


@pytest.mark.slow
def test_random_programs_have_equal_results_lifted_and_folded(classic: Any, tmp_path: Path) -> None:
    """Programs have rows, states, conditions and results of all types, FILTER, retractions, NULLs and odd keys."""
    random_cases = cases(range(1000, 1060), tmp_path)
    assert [result for each in random_cases if (result := each.difference(classic))] == []
    assert sum(each.has_result for each in random_cases) > 8


@pytest.mark.slow
def test_random_programs_of_a_server_have_equal_results(spark: Any, tmp_path: Path) -> None:
    """The server tells how they lift, and Spark computes what the class would, also over Connect."""
    random_cases = cases(range(3016, 3036), tmp_path)
    modules = [sys.modules[each.function.cls.__module__] for each in random_cases]
    with serving(*modules, state_keys="a key for the random programs") as server:
        assert eventually(lambda: answers(server.url), timeout_s=60)
        functions = connect(server.url)
        assert [result for each in random_cases if (result := each.difference(spark, functions))] == []
    assert sum(each.has_result for each in random_cases) > 3


@pytest.mark.slow
def test_random_programs_in_statements_have_equal_results(spark: Any, tmp_path: Path) -> None:
    """One statement over a view of a view has all programs."""
    plain_cases = [each for each in cases(range(2000, 2060), tmp_path) if not each.is_hostile and each.program.skips][
        :6
    ]
    for each in plain_cases:
        name = each.function.name
        spark.createDataFrame(each.rows, each.schema).createOrReplaceTempView(f"of_{name}")
        spark.sql(f"SELECT * FROM of_{name} WHERE row >= 0").createOrReplaceTempView(f"view_{name}")
        arguments = ", ".join(each.program.types)
        text = f"SELECT k, {name}({arguments}) FILTER (WHERE row > 3) AS o FROM view_{name} GROUP BY k"
        register(spark, connect([each.function.cls]))
        result = [sorted(map(repr, sql(spark, text, plan=plan).collect())) for plan in ("lifted", "fold")]
        assert result[0] == result[1], each.program.text
