"""The line through points by least squares, and its prediction for one x.

Arguments: `y` and `x` DOUBLE, in the order of SQL's `regr_slope(y, x)`; rows with NULL, NaN or an infinity are ignored.
Direct argument: `at`, the x of the prediction. Result: STRUCT<slope, intercept, r2, prediction>, all DOUBLE; NULL if
there are not two different x. `r2` is NULL if all y are equal. State: a struct of a count and five exact sums. Merges
and retracts exactly: the result depends on the live rows alone, not on their order or on rows that were retracted.

Error bound: `slope` and `r2` are the exact results, rounded once. `intercept` and `prediction` are sums of two rounded
terms. So large x that lie close together, such as times, need no shift.

Source: the normal equations, C. F. Gauss (1809), in the exact arithmetic of `foldflight.ExactSum`.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> linear_regression = connect(LinearRegression)["linear_regression"]
>>> first, second = run_epochs(
...     {"line": linear_regression("price", "area", at=100.0)},
...     epochs=[
...         [{"area": 20.0, "price": 50.0}, {"area": 40.0, "price": 90.0}, {"area": 60.0, "price": 160.0}],
...         [("-D", {"area": 60.0, "price": 160.0})],
...     ],
... )
>>> second.changelog[-1]
('+U', {'line': {'slope': 2.0, 'intercept': 10.0, 'r2': 1.0, 'prediction': 210.0}})
"""

import math

import numpy as np
import pyarrow as pa

from foldflight import ExactSum, udaf

LINE = pa.struct([(name, pa.float64()) for name in ("slope", "intercept", "r2", "prediction")])
ONE = ExactSum(1.0).units


class Sums:
    count: int
    x: ExactSum
    y: ExactSum
    xx: ExactSum
    xy: ExactSum
    yy: ExactSum

    def __init__(self):
        self.count = 0
        self.x, self.y, self.xx, self.xy, self.yy = (ExactSum() for _ in range(5))


@udaf(
    input_types=["DOUBLE", "DOUBLE"],
    result_type=LINE,
    skip_nulls=True,
    invertible=True,
)
class LinearRegression:
    """Fit a line by least squares, and predict the y of one x."""

    def __init__(self, at: float = 0.0):
        self.at = at

    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, accumulator, y, x):
        self.add(accumulator, y, x, 1)

    def retract(self, accumulator, y, x):
        self.add(accumulator, y, x, -1)

    def merge(self, accumulator, other):
        accumulator.count += other.count
        for name in ("x", "y", "xx", "xy", "yy"):
            getattr(accumulator, name).merge(getattr(other, name))

    def get_value(self, accumulator):
        sums = (getattr(accumulator, name).units for name in ("x", "y", "xx", "xy", "yy"))
        return self.line(accumulator.count, *sums)

    def add(self, accumulator, y, x, sign):
        if math.isfinite(x) and math.isfinite(y):
            accumulator.count += sign
            accumulator.x.add(x, sign)
            accumulator.y.add(y, sign)
            accumulator.xx.add_product(x, x, sign)
            accumulator.xy.add_product(x, y, sign)
            accumulator.yy.add_product(y, y, sign)

    def line(self, count, x, y, xx, xy, yy):
        """Return the result for a count and for sums as multiples of the unit of `ExactSum`."""
        # These are count**2 times the variances and the covariance. Python rounds the quotient of two integers once.
        x_deviations = count * xx * ONE - x * x
        y_deviations = count * yy * ONE - y * y
        products = count * xy * ONE - x * y
        if count < 2 or not x_deviations:
            return None
        slope = products / x_deviations
        x_mean, y_mean = x / (count * ONE), y / (count * ONE)
        return {
            "slope": slope,
            "intercept": y_mean - slope * x_mean,
            "r2": products * products / (x_deviations * y_deviations) if y_deviations else None,
            "prediction": y_mean + slope * (self.at - x_mean),
        }

    # The same for whole chunks: `accumulators` has an array for `count` and a foldflight.ExactSums for each sum.

    def fold_many(self, accumulators, slots, signs, ys, xs):
        finite = np.isfinite(ys) & np.isfinite(xs)
        slots, signs = slots[finite], np.broadcast_to(signs, len(slots))[finite]
        ys, xs = ys[finite], xs[finite]
        np.add.at(accumulators["count"], slots, signs)
        accumulators["x"].add(slots, xs, signs)
        accumulators["y"].add(slots, ys, signs)
        accumulators["xx"].add_products(slots, xs, xs, signs)
        accumulators["xy"].add_products(slots, xs, ys, signs)
        accumulators["yy"].add_products(slots, ys, ys, signs)

    def merge_many(self, accumulators, slots, others):
        np.add.at(accumulators["count"], slots, others["count"])
        for name in ("x", "y", "xx", "xy", "yy"):
            accumulators[name].merge(slots, others[name])

    def get_values(self, accumulators):
        sums = [accumulators[name] for name in ("x", "y", "xx", "xy", "yy")]
        counts = accumulators["count"].tolist()
        lines = [self.line(count, *(each.units(slot) for each in sums)) for slot, count in enumerate(counts)]
        return pa.array(lines, LINE)
