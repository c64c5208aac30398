"""The point on the Earth in the middle of the given points: the direction of their mean vector on the sphere.

Unlike averages of latitude and longitude, it is right across the 180th meridian and near the poles.

Arguments: `latitude` and `longitude` DOUBLE, in degrees; rows with NULL, NaN or an infinity are ignored. Result:
STRUCT<latitude DOUBLE, longitude DOUBLE>, in degrees, longitude above -180 and up to 180, 0 at the poles; NULL if
there is no point, or if the points balance each other, such as two opposite ones. State: a struct of a count and three
sums. Merges and retracts.

Error bound: each row adds or subtracts numbers of magnitude at most 1, so after n rows were added or retracted the sums
are wrong by at most about n**2 * 2**-53. Divided by the length of the summed vector this is the error in radians: below
a metre for a million points of one country.

Source: N. I. Fisher, T. Lewis and B. J. J. Embleton, "Statistical analysis of spherical data" (1987), the mean
direction.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> geographic_centroid = connect(GeographicCentroid)["geographic_centroid"]
>>> def row(latitude, longitude):
...     return {"latitude": latitude, "longitude": longitude}
>>> first, second = run_epochs(
...     {"middle": geographic_centroid("latitude", "longitude")},
...     epochs=[[row(0.0, 179.0), row(0.0, -179.0)], [("-D", row(0.0, -179.0)), row(0.0, 177.0)]],
... )
>>> for epoch in (first, second):
...     middle = epoch.changelog[-1][1]["middle"]
...     print(round(middle["latitude"], 9), round(abs(middle["longitude"]), 9))
0.0 180.0
0.0 178.0
"""

import math

import numpy as np
import pyarrow as pa

from foldflight import udaf

POINT = pa.struct([("latitude", pa.float64()), ("longitude", pa.float64())])
# Vectors whose mean is shorter than this balance each other; what is left is due to rounding.
BALANCED = 1e-9


class Vectors:
    count: int
    x: float
    y: float
    z: float

    def __init__(self):
        self.count, self.x, self.y, self.z = 0, 0.0, 0.0, 0.0


@udaf(input_types=["DOUBLE", "DOUBLE"], result_type=POINT, skip_nulls=True)
class GeographicCentroid:
    """Find the point in the middle of points on the Earth."""

    def create_accumulator(self) -> Vectors:
        return Vectors()

    def accumulate(self, accumulator, latitude, longitude):
        self.add(accumulator, latitude, longitude, 1)

    def retract(self, accumulator, latitude, longitude):
        self.add(accumulator, latitude, longitude, -1)

    def merge(self, accumulator, other):
        accumulator.count += other.count
        accumulator.x += other.x
        accumulator.y += other.y
        accumulator.z += other.z

    def get_value(self, accumulator):
        x, y, z = accumulator.x, accumulator.y, accumulator.z
        # After retractions of all points the sums are what is left by rounding, so the count decides.
        level, zero = math.hypot(x, y), BALANCED * accumulator.count
        if not accumulator.count or math.hypot(level, z) <= zero:
            return None
        # Rounding must not choose the longitude of a pole, or between 180 degrees east and west.
        longitude = math.degrees(math.atan2(0.0 if abs(y) <= zero else y, 0.0 if level <= zero else x))
        return {"latitude": math.degrees(math.atan2(z, level)), "longitude": longitude}

    def add(self, accumulator, latitude, longitude, sign):
        if math.isfinite(latitude) and math.isfinite(longitude):
            up, around = math.radians(latitude), math.radians(longitude)
            accumulator.count += sign
            accumulator.x += sign * math.cos(up) * math.cos(around)
            accumulator.y += sign * math.cos(up) * math.sin(around)
            accumulator.z += sign * math.sin(up)

    # The same for whole chunks: `accumulators` is a structured array, and `slots` holds the slot of each row.

    def fold_many(self, accumulators, slots, signs, latitudes, longitudes):
        finite = np.isfinite(latitudes) & np.isfinite(longitudes)
        slots, signs = slots[finite], np.broadcast_to(signs, len(slots))[finite]
        up, around = np.radians(latitudes[finite]), np.radians(longitudes[finite])
        np.add.at(accumulators["count"], slots, signs)
        np.add.at(accumulators["x"], slots, signs * np.cos(up) * np.cos(around))
        np.add.at(accumulators["y"], slots, signs * np.cos(up) * np.sin(around))
        np.add.at(accumulators["z"], slots, signs * np.sin(up))

    def merge_many(self, accumulators, slots, others):
        for name in ("count", "x", "y", "z"):
            np.add.at(accumulators[name], slots, others[name])

    def get_values(self, accumulators):
        x, y, z = (accumulators[name] for name in "xyz")
        level, count = np.hypot(x, y), accumulators["count"]
        zero = BALANCED * count
        none = (count == 0) | (np.hypot(level, z) <= zero)
        longitudes = np.degrees(np.arctan2(np.where(np.abs(y) <= zero, 0.0, y), np.where(level <= zero, 0.0, x)))
        columns = [pa.array(np.degrees(np.arctan2(z, level))), pa.array(longitudes)]
        return pa.StructArray.from_arrays(columns, fields=list(POINT), mask=pa.array(none))
