"""Estimates of the gallery beside Apache DataSketches: each pair agrees within the bounds of both."""

from __future__ import annotations

import math

import datasketches
import numpy as np
import pytest

from examples.gallery.hyperloglog import (
    HllCountDistinct,
    HllSketch,
    hll_difference_count,
    hll_intersection_count,
)
from examples.gallery.t_digest import TDigest
from examples.gallery.top_k import TopK
from tests.laws.test_gallery import merged

# Of a HyperLogLog of 2**12 registers: three standard errors.
HLL_ERROR = 3 * 1.04 / math.sqrt(1 << 12)
COUNT = 20_000


def test_quantiles_agree_with_kll_and_t_digest() -> None:
    """The ranks of our quantile and of theirs differ by no more than both errors."""
    values = np.random.default_rng(11).gamma(2.0, size=COUNT)
    sorted_values = np.sort(values)
    kll, digest = datasketches.kll_doubles_sketch(200), datasketches.tdigest_double(200)
    kll.update(values)
    digest.update(values)
    ours = merged(TDigest(), values.tolist(), 4)
    width = 2 * math.pi / 200
    for fraction in (0.01, 0.1, 0.5, 0.9, 0.99):
        bound = 1.5 * (width * math.sqrt(fraction * (1 - fraction)) + width**2 / 4)
        ranks = [
            np.searchsorted(sorted_values, value) / COUNT
            for value in (
                TDigest(fraction).get_value(ours),
                kll.get_quantile(fraction),
                digest.get_quantile(fraction),
            )
        ]
        assert abs(ranks[0] - ranks[1]) <= bound + kll.normalized_rank_error(False), fraction
        assert abs(ranks[0] - ranks[2]) <= 2 * bound, fraction


@pytest.mark.parametrize("distinct", [100, 5_000, 50_000])
def test_distinct_counts_agree_with_hll(distinct: int) -> None:
    """Our interval of three standard errors and theirs overlap."""
    texts = [f"visitor {number}" for number in range(distinct)]
    theirs = datasketches.hll_sketch(12, datasketches.HLL_8)
    for text in texts:
        theirs.update(text)
    function = HllCountDistinct()
    ours = function.get_value(merged(function, texts, 3))
    assert ours * (1 - HLL_ERROR) <= theirs.get_upper_bound(3)
    assert theirs.get_lower_bound(3) <= ours * (1 + HLL_ERROR)


def test_set_operations_agree_with_theta() -> None:
    """Our intersection and difference agree with those that theta sketches estimate, within both errors."""
    texts = [f"visitor {number}" for number in range(30_000)]
    parts = texts[:20_000], texts[8_000:]
    function, sketches, thetas = HllSketch(), [], []
    for part in parts:
        sketches.append(function.get_value(merged(function, part, 1)))
        thetas.append(datasketches.update_theta_sketch(12))
        for text in part:
            thetas[-1].update(text)
    both = datasketches.theta_intersection()
    both.update(thetas[0])
    both.update(thetas[1])
    # An intersection or difference is computed from three counts of at most the union.
    bound = 3 * HLL_ERROR * len(texts)
    for ours, theirs in (
        (hll_intersection_count(*sketches), both.get_result()),
        (hll_difference_count(*sketches), datasketches.theta_a_not_b().compute(*thetas)),
    ):
        assert theirs.get_lower_bound(3) - bound <= ours <= theirs.get_upper_bound(3) + bound


def test_frequent_items_agree() -> None:
    """For each item that either finds, the intervals of its count overlap; the items that are certain are the same."""
    weights = np.arange(1, 3_001) ** -1.2
    sample = np.random.default_rng(13).choice(3_000, COUNT, p=weights / weights.sum())
    texts = [f"item {number}" for number in sample.tolist()]
    theirs = datasketches.frequent_strings_sketch(8)  # holds 192 items
    for text in texts:
        theirs.update(text)
    function = TopK(k=192, counters=192)
    accumulator = merged(function, texts, 3)
    ours = {each["item"]: each for each in function.get_value(accumulator)}
    threshold = COUNT // 50
    certain = theirs.get_frequent_items(datasketches.frequent_items_error_type.NO_FALSE_POSITIVES, threshold)
    assert len(certain) > 3
    for item, each in ours.items():
        low, high = theirs.get_lower_bound(item), theirs.get_upper_bound(item)
        assert each["count"] - each["error"] <= high
        assert low <= each["count"]
    assert {item for item, *_ in certain} <= ours.keys()
