"""The gallery: its examples are correct, its functions keep the laws, and their results equal brute force."""

from __future__ import annotations

import datetime
import doctest
import importlib
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.gallery import geographic_centroid, hyperloglog, percentile, t_digest, top_k
from examples.gallery import weighted_median as weighted_median_of
from foldflight import FunctionError, connect
from foldflight.functions import Registry
from foldflight.testing import check_laws, run_epochs
from tests.effort import examples_of

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "examples" / "gallery").glob("*.py"))
NAMES = [f"examples.gallery.{module}" for module in MODULES]
LITERALS: dict[str, dict[str, Any]] = {
    "ewma": {"half_life_s": 3e8},
    "funnel": {"steps": "a,b", "within_s": 1e9},
    "histogram": {"low": -50.0, "high": 50.0},
    "linear_regression": {"at": 3.0},
}
# It refuses bytes that are not sketches, such as those that the checker generates. It has a test of its own below.
REFUSES = ["hll_union"]
# Functions of sketches refuse most bytes that the checker would generate.
SKETCHES = [bytes(16), bytes(range(16)), bytes([3] * 16)]
EXAMPLES: dict[str, dict[str, list[Any]]] = {
    "hll_count": {"sketch": SKETCHES},
    "hll_intersection_count": {"one": SKETCHES, "other": SKETCHES},
    "hll_difference_count": {"one": SKETCHES, "other": SKETCHES},
}
FUNCTIONS = {name: function for name, function in Registry.load(NAMES).items() if name not in {*Registry(), *REFUSES}}

pytestmark = pytest.mark.usefixtures("no_compiler")

EPOCH = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
WITHIN_S = 40.0
HALF_LIFE_S = 30.0
STEPS = ["a", "b", "c"]

Row = dict[str, Any]
# Of these, vectors are made with small changes.
TOPICS = np.random.default_rng(3).standard_normal((6, 384)).tolist()


def test_each_function_has_a_file_and_a_page() -> None:
    """Each has a file and a page, and each page shows its file."""
    assert len(MODULES) == 17
    for module in MODULES:
        page = (ROOT / "docs" / "gallery" / f"{module}.md").read_text()
        assert f"```{{literalinclude}} ../../examples/gallery/{module}.py\n" in page


@pytest.mark.parametrize("module", NAMES)
def test_the_examples_are_correct(module: str) -> None:
    """The example of each file, epochs of rows without Spark, gives what it says."""
    failure_count, example_count = doctest.testmod(importlib.import_module(module))
    assert example_count > 3
    assert failure_count == 0


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_the_laws(name: str) -> None:
    """Each function of the gallery keeps all laws."""
    examples = EXAMPLES.get(name, examples_of(50))
    result = check_laws(FUNCTIONS[name], literals=LITERALS.get(name), examples=examples)
    assert [result for result in result if result.passed is False] == []


def test_all_functions_of_the_gallery_merge_and_have_typed_states() -> None:
    """Each aggregate folds in two phases, and its state is an Arrow value."""
    aggregates = [function for function in FUNCTIONS.values() if hasattr(function, "capabilities")]
    assert len(aggregates) == 19
    assert {function.capabilities.codec for function in aggregates} == {"typed"}
    assert all(function.capabilities.merge for function in aggregates)


# --- brute force: each result from all rows ---


def funnel(rows: list[Row]) -> int:
    """Try all chains of rows."""
    for length in range(len(STEPS), 0, -1):
        expected = STEPS[:length]
        for chain in itertools.product(*([row["at"] for row in rows if row["step"] == step] for step in expected)):
            rises = all(one < other for one, other in itertools.pairwise(chain))
            if rises and (chain[-1] - chain[0]).total_seconds() <= WITHIN_S:
                return length
    return 0


def streak(rows: list[Row]) -> int:
    days = {row["day"] for row in rows}
    return max(
        length
        for start in days
        for length in range(1, len(days) + 1)
        if all(start + datetime.timedelta(step) in days for step in range(length))
    )


def weighted_median(rows: list[Row]) -> float:
    """Take the middle of a list in which each value stands as often as its weight says."""
    values = sorted(value for row in rows for value in [row["value"]] * row["weight"])
    return values[(len(values) - 1) // 2]


def centroid(rows: list[Row]) -> dict[str, Any]:
    vectors = np.array(
        [
            [np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)]
            for up, around in (np.radians((row["latitude"], row["longitude"])) for row in rows)
        ]
    )
    x, y, z = vectors.sum(axis=0)
    return {"latitude": math.degrees(math.atan2(z, math.hypot(x, y))), "longitude": math.degrees(math.atan2(y, x))}


def line(rows: list[Row]) -> dict[str, Any] | None:
    xs, ys = [row["longitude"] for row in rows], [row["value"] for row in rows]
    if len(set(xs)) < 2:
        return None
    slope, intercept = statistics.linear_regression(xs, ys)
    r2 = statistics.correlation(xs, ys) ** 2 if len(set(ys)) > 1 else None
    return {"slope": slope, "intercept": intercept, "r2": r2, "prediction": slope * 3 + intercept}


def matrix(rows: list[Row], name: str = "v") -> np.ndarray:
    return np.array([row[name] for row in rows], np.float32).astype(np.float64)


def mean(rows: list[Row]) -> list[float]:
    return matrix(rows).mean(axis=0).astype(np.float32).tolist()


def share_of_change(rows: list[Row], metric: str) -> float | None:
    before, now = ([row for row in rows if row["is_new"] is is_new] for is_new in (False, True))
    if not (before and now):
        return None
    one, other = matrix(before).mean(axis=0), matrix(now).mean(axis=0)
    if metric == "l2":
        return float(np.sqrt(((one - other) ** 2).sum()))
    return 1 - float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))


def covariances(rows: list[Row]) -> dict[str, Any]:
    values = matrix(rows, "short")
    return {"mean": values.mean(axis=0).tolist(), "covariance": np.cov(values.T).ravel().tolist()}


def similar(rows: list[Row], metric: str) -> list[dict[str, Any]]:
    vectors, queries = matrix(rows), matrix(rows, "query")
    scores = (vectors * queries).sum(axis=1)
    if metric == "cosine":
        scores /= np.sqrt((vectors**2).sum(axis=1) * (queries**2).sum(axis=1))
    if metric == "l2":
        scores = -np.sqrt(((vectors - queries) ** 2).sum(axis=1))
    best = sorted(zip((-scores).tolist(), (row["id"] for row in rows), strict=True))[:3]
    return [{"item": item, "score": -score} for score, item in best]


def components(rows: list[Row]) -> list[list[str]]:
    """Compare all pairs. The copies of one vector are made with so small changes that none of them is missed."""
    vectors = matrix(rows)
    vectors /= np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    near = vectors @ vectors.T >= 0.99
    sets = {tuple(sorted(rows[at]["id"] for at in np.flatnonzero(each))) for each in near}
    return sorted([*each] for each in sets if len(each) > 1)


def histogram(rows: list[Row]) -> list[int]:
    values = np.array([row["value"] for row in rows])
    edges = np.array([-math.inf, *range(-20, 21, 10), math.inf])
    return [int(np.sum((values >= low) & (values < high))) for low, high in itertools.pairwise(edges)]


def ewma(rows: list[Row]) -> float:
    now = max(row["at"] for row in rows)
    weights = [0.5 ** ((now - row["at"]).total_seconds() / HALF_LIFE_S) for row in rows]
    return sum(weight * row["value"] for weight, row in zip(weights, rows, strict=True)) / sum(weights)


def frequent(rows: list[Row]) -> list[dict[str, Any]]:
    counts = Counter(row["text"] for row in rows)
    sorted_values = sorted(counts, key=lambda text: (-counts[text], text))
    return [{"item": text, "count": counts[text], "error": 0} for text in sorted_values[:3]]


def median(rows: list[Row]) -> float:
    return float(np.quantile([row["value"] for row in rows], 0.3))


Oracle = tuple[str, tuple[str, ...], dict[str, Any], Callable[[list[Row]], Any]]

RETRACTING: dict[str, Oracle] = {
    "percentile": ("percentile", ("value",), {"fraction": 0.3}, median),
    "funnel": ("funnel", ("step", "at"), {"steps": "a, b, c", "within_s": WITHIN_S}, funnel),
    "streak": ("longest_streak", ("day",), {}, streak),
    "weighted": ("weighted_median", ("value", "weight"), {}, weighted_median),
    "centroid": ("geographic_centroid", ("latitude", "longitude"), {}, centroid),
    "line": ("linear_regression", ("value", "longitude"), {"at": 3.0}, line),
    "histogram": ("histogram", ("value",), {"low": -20.0, "high": 20.0, "buckets": 4}, histogram),
    "mean": ("centroid", ("v",), {}, mean),
    "turned": ("drift", ("v", "is_new"), {}, lambda rows: share_of_change(rows, "cosine")),
    "moved": ("drift", ("v", "is_new"), {"metric": "l2"}, lambda rows: share_of_change(rows, "l2")),
    "covariances": ("mean_and_covariance", ("short",), {}, covariances),
}
APPENDING: dict[str, Oracle] = {
    "digest": ("t_digest", ("value",), {"fraction": 0.3}, median),
    "visitors": ("hll_count_distinct", ("text",), {}, lambda rows: len({row["text"] for row in rows})),
    "frequent": ("top_k", ("text",), {"k": 3}, frequent),
    "average": ("ewma", ("value", "at"), {"half_life_s": HALF_LIFE_S}, ewma),
    "first": ("first_by", ("value", "at"), {}, lambda rows: min((row["at"], row["value"]) for row in rows)[1]),
    "last": ("last_by", ("text", "at"), {}, lambda rows: max((row["at"], row["text"]) for row in rows)[1]),
    **{
        metric: (
            "top_k_similar",
            ("id", "v", "query"),
            {"k": 3, "metric": metric},
            lambda rows, metric=metric: similar(rows, metric),
        )
        for metric in ("cosine", "dot", "l2")
    },
    "copies": ("near_duplicates", ("id", "v"), {"threshold": 0.99}, components),
}


def row(rng: random.Random) -> Row:
    return {
        "key": rng.choice("kl"),
        "text": f"text {rng.randrange(8)}",
        "step": rng.choice([*STEPS, "other"]),
        "at": EPOCH + datetime.timedelta(seconds=rng.randrange(120)),
        "day": EPOCH.date() + datetime.timedelta(days=rng.randrange(30)),
        "value": rng.randrange(-120, 120) / 4,
        "weight": rng.randrange(1, 5),
        "latitude": rng.uniform(50, 70),
        "id": f"{rng.random()}",
        "is_new": rng.random() < 0.5,
        "v": [each + rng.gauss(0, 0.001) for each in TOPICS[rng.randrange(len(TOPICS))]],
        "query": TOPICS[0],
        "short": [rng.gauss(3, 1) for _ in range(16)],
        "longitude": rng.uniform(-20, 40),
    }


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)


@pytest.mark.parametrize("calls", [RETRACTING, APPENDING], ids=["retracting", "appending"])
@pytest.mark.parametrize("seed", range(3))
def test_results_equal_those_of_brute_force(calls: dict[str, Oracle], seed: int) -> None:
    """After each epoch of random rows, of which some are retracted, each group has the result over its live rows."""
    rng = random.Random(seed)
    functions = connect(f"embedded:{','.join(NAMES)}")
    live: list[Row] = []
    epochs, expected = [], []
    for _ in range(4):
        changes = [("+I", row(rng)) for _ in range(12)]
        retracted_rows = rng.sample(live, 6) if live and calls is RETRACTING else []
        live = [each for each in live if not any(each is other for other in retracted_rows)] + [
            each for _, each in changes
        ]
        epochs.append(changes + [("-D", each) for each in retracted_rows])
        groups = {key: [each for each in live if each["key"] == key] for key in "kl"}
        expected.append(
            {key: {name: oracle(rows) for name, (*_, oracle) in calls.items()} for key, rows in groups.items()}
        )
    aggregates = {
        name: functions[function](*columns, **literals) for name, (function, columns, literals, _) in calls.items()
    }
    result: dict[str, Any] = {}
    for epoch, expected_values in zip(run_epochs(aggregates, epochs, keys=["key"]), expected, strict=True):
        result |= {output_row.pop("key"): output_row for kind, output_row in epoch.changelog if kind in ("+I", "+U")}
        for key, name in itertools.product("kl", calls):
            assert alike(result[key][name], expected_values[key][name]), (key, name)


def test_a_step_of_a_funnel_comes_later_than_the_step_before_it() -> None:
    """Two steps at the same time do not follow each other, in whatever order their rows arrive."""
    last_step = connect("embedded:examples.gallery.funnel")["funnel"]("step", "at", steps="a,b", within_s=10.0)
    for steps in ("ab", "ba"):
        rows = [{"step": step, "at": EPOCH} for step in steps]
        later = [{"step": "b", "at": EPOCH + datetime.timedelta(seconds=10)}]
        result = [epoch.changelog[-1][1] for epoch in run_epochs({"reached": last_step}, [rows, later])]
        assert result == [{"reached": 1}, {"reached": 2}]


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("values", "fraction", "result"),
    [
        ([INF], 0.5, INF),
        ([-INF], 0.5, -INF),
        ([INF, INF], 0.5, INF),
        ([-INF, -INF, 1.0], 0.25, -INF),
        ([-INF, 1.0, INF], 0.5, 1.0),
        ([-INF, 1.0], 0.5, -INF),
        ([1.0, INF], 0.5, INF),
        ([-0.0, 0.0], 0.5, 0.0),
    ],
)
def test_a_percentile_may_be_an_infinity(values: list[float], fraction: float, result: float) -> None:
    """Infinities are ordinary values of a percentile, interpreted and for whole chunks."""
    one = percentile.Percentile(fraction)
    assert str(one.get_value(values)) == str(result)
    many = connect(percentile)["percentile"]("value", fraction=fraction)
    (epoch,) = run_epochs({"found": many}, [[{"value": value} for value in values]])
    assert str(epoch.changelog[-1][1]["found"]) == str(result)


def test_a_centroid_of_no_points_is_null() -> None:
    """After all points were retracted, the rest that rounding leaves is no point."""
    function = geographic_centroid.GeographicCentroid()
    accumulator = function.create_accumulator()
    accumulator.x = 2.0**-53
    assert function.get_value(accumulator) is None
    chunk = np.array([(0, 2.0**-53, 0.0, 0.0)], [("count", "i8"), ("x", "f8"), ("y", "f8"), ("z", "f8")])
    assert function.get_values(chunk).to_pylist() == [None]


def test_rounding_does_not_choose_a_longitude() -> None:
    """At a pole every longitude is the same point, and 180 degrees east is west: rows that leave change nothing."""
    function = geographic_centroid.GeographicCentroid()
    one, two = function.create_accumulator(), function.create_accumulator()
    for accumulator in (one, two):
        function.accumulate(accumulator, 90.0, 0.125)
    function.accumulate(two, 0.0, 90.0)
    function.retract(two, 0.0, 90.0)
    assert function.get_value(one) == function.get_value(two) == {"latitude": 90.0, "longitude": 0.0}
    chunk = np.array([(1, 0.0, 2.0**-53, -1.0)], [("count", "i8"), ("x", "f8"), ("y", "f8"), ("z", "f8")])
    assert function.get_values(chunk).to_pylist() == [{"latitude": -90.0, "longitude": 0.0}]
    line = np.array([(1, -1.0, y, 0.0) for y in (2.0**-53, -(2.0**-53))], chunk.dtype)
    assert [value["longitude"] for value in function.get_values(line).to_pylist()] == [180.0, 180.0]


def test_a_weighted_median_does_not_round_its_weights() -> None:
    """Just less than half of the weight is not half of it, above 2**53, too."""
    function = weighted_median_of.WeightedMedian()
    assert function.get_value({1.0: 2**60, 2.0: 2**60 + 2}) == 2.0
    assert function.get_value({1.0: 2**60, 2.0: 2**60}) == 1.0


@pytest.mark.parametrize("name", ["first_by", "last_by"])
def test_first_and_last_ignore_the_order_of_rows_with_nan(name: str) -> None:
    """A row without a key is ignored, and of equal keys the value NaN is the greatest, in any order of the rows."""
    function = connect("embedded:examples.gallery.first_last")[name]("value", "at")
    for rows in itertools.permutations([(9.0, NAN), (1.0, 5.0), (NAN, 5.0), (2.0, 5.0)]):
        (epoch,) = run_epochs({"found": function}, [[{"value": value, "at": at} for value, at in rows]])
        result = epoch.changelog[-1][1]["found"]
        assert result == 1.0 if name == "first_by" else math.isnan(result)
    (epoch,) = run_epochs({"found": function}, [[{"value": 9.0, "at": NAN}]])
    assert epoch.changelog[-1][1] == {"found": None}


# --- bounds of the estimates ---


def merged(function: Any, rows: list[Any], parts: int) -> Any:
    """Return the accumulator of rows that are folded in parts, which are merged."""
    total = function.create_accumulator()
    for part in range(parts):
        accumulator = function.create_accumulator()
        for each in rows[part::parts]:
            function.accumulate(accumulator, each)
        function.merge(total, accumulator)
    return total


@pytest.mark.parametrize("parts", [1, 7])
@pytest.mark.parametrize("shape", ["random", "ascending", "with repetitions"])
def test_ranks_of_a_t_digest_are_within_their_bound(parts: int, shape: str) -> None:
    """The rank of each estimate is within the bound that the docstring states, and the state stays small."""
    count = 20_000
    values = np.random.default_rng(5).lognormal(size=count)
    if shape == "ascending":
        values.sort()
    elif shape == "with repetitions":
        values = np.round(values)
    sorted_values = np.sort(values)
    accumulator = merged(t_digest.TDigest(), values.tolist(), parts)
    assert len(accumulator.means) + len(accumulator.buffer) < 600
    width = 2 * math.pi / 200
    for fraction in (0.0, 0.001, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0):
        result = t_digest.TDigest(fraction).get_value(accumulator)
        bound = 1.5 * (width * math.sqrt(fraction * (1 - fraction)) + width**2 / 4) + 1 / count
        below, up_to = (np.searchsorted(sorted_values, result, side=side) / count for side in ("left", "right"))
        assert below - bound <= fraction <= up_to + bound, (fraction, result)


@pytest.mark.parametrize("distinct", [10, 3_000, 12_000, 60_000])
def test_hyperloglog_counts_within_four_standard_errors(distinct: int) -> None:
    """The count is within the error that the docstring states; a small one is nearly exact."""
    texts = [f"visitor {number}" for number in range(distinct)]
    function = hyperloglog.HllCountDistinct()
    result = function.get_value(merged(function, texts, 3))
    assert abs(result - distinct) <= (0 if distinct == 10 else 4 * 1.04 / math.sqrt(1 << 12) * distinct)


def test_sketches_have_set_operations() -> None:
    """The union of sketches is the sketch of all texts, bit for bit; other operations are within their bound."""
    texts = [f"visitor {number}" for number in range(6_000)]
    function = hyperloglog.HllSketch()
    one, other, all_of_them = (
        function.get_value(merged(function, part, 2)) for part in (texts[:4_000], texts[1_000:], texts)
    )
    union = connect(hyperloglog)["hll_union"]
    (epoch,) = run_epochs({"union": union("sketch")}, [[{"sketch": one}, {"sketch": other}, {"sketch": None}]])
    assert epoch.changelog[-1][1] == {"union": all_of_them}
    bound = 3 * 4 * 1.04 / math.sqrt(1 << 12) * len(texts)
    assert abs(hyperloglog.hll_count(all_of_them) - 6_000) <= bound / 3
    assert abs(hyperloglog.hll_intersection_count(one, other) - 3_000) <= bound
    assert abs(hyperloglog.hll_difference_count(one, other) - 1_000) <= bound
    assert hyperloglog.hll_difference_count(one, all_of_them) == 0


def test_sketches_that_do_not_fit_are_refused() -> None:
    """Sketches of several precisions are not united, and bytes that are not a sketch are not counted."""
    union = connect(hyperloglog)["hll_union"]
    with pytest.raises(FunctionError, match="a sketch of precision 12 has 4096 bytes, not 16"):
        run_epochs({"union": union("sketch")}, [[{"sketch": bytes(16)}]])
    with pytest.raises(ValueError, match="the sketches have 16 and 32 bytes"):
        hyperloglog.hll_intersection_count(bytes(16), bytes(32))
    with pytest.raises(ValueError, match="a power of two, not 17"):
        hyperloglog.hll_count(bytes(17))
    with pytest.raises(ValueError, match="is greater than 61; the sketch is damaged"):
        hyperloglog.hll_count(bytes([200] * 16))


@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize("exponent", [0.0, 1.1], ids=["uniform", "Zipf"])
def test_top_k_counts_within_its_error(parts: int, exponent: float) -> None:
    """Each count is at most the stated error too high and never too low, and no frequent item is left out."""
    count, counters = 20_000, 50
    weights = np.arange(1, 2_001) ** -exponent
    sample = np.random.default_rng(3).choice(2_000, count, p=weights / weights.sum())
    texts = [f"item {number}" for number in sample.tolist()]
    truth = Counter(texts)
    function = top_k.TopK(k=counters, counters=counters)
    accumulator = merged(function, texts, parts)
    result = {each["item"]: each for each in function.get_value(accumulator)}
    assert len(result) == counters
    for item, each in result.items():
        assert each["count"] - each["error"] <= truth[item] <= each["count"]
        assert each["error"] <= count / counters
    assert {item for item, rows in truth.items() if rows > count / counters} <= result.keys()


def test_the_item_that_is_replaced_does_not_depend_on_the_state() -> None:
    """Space-saving that starts again from its state at any row gives the same result: the search order is no state."""
    texts = [f"item {number}" for number in np.random.default_rng(1).integers(0, 30, 400).tolist()]
    function = top_k.TopK(k=8, counters=8)
    once = merged(function, texts, 1)
    again = function.create_accumulator()
    for text in texts:
        again.smallest = []
        function.accumulate(again, text)
    whole = function.create_accumulator()
    for text in texts:
        function.accumulate(whole, text)
    assert (whole.counts, whole.errors) == (again.counts, again.errors)
    assert function.get_value(once) == function.get_value(whole)


@pytest.mark.parametrize(
    ("name", "columns", "literals", "message"),
    [
        ("percentile", ("value",), {"fraction": 1.5}, "fraction is 1.5; give a number from 0 to 1"),
        ("t_digest", ("value",), {"fraction": -1.0}, "fraction is -1.0"),
        ("t_digest", ("value",), {"compression": 1}, "give at least 20"),
        ("hll_sketch", ("text",), {"precision": 3}, "give a number from 4 to 16"),
        ("top_k", ("text",), {"k": 0}, "give a k from 1 to counters"),
        ("ewma", ("value", "at"), {"half_life_s": 0.0}, "seconds greater than 0"),
        ("funnel", ("step", "at"), {"steps": "a,,b", "within_s": 1.0}, "give different names, separated by commas"),
        ("histogram", ("value",), {"low": 1.0, "high": 1.0}, "give low < high"),
    ],
)
def test_wrong_direct_arguments_are_refused(
    name: str, columns: tuple[str, ...], literals: dict[str, Any], message: str
) -> None:
    """A direct argument out of its range is an error that says what to give."""
    functions = connect(f"embedded:{','.join(NAMES)}")
    with pytest.raises(Exception, match=message):
        run_epochs({"result": functions[name](*columns, **literals)}, [[row(random.Random(0))]])
