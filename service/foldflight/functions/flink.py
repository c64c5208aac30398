"""PyFlink's names for aggregate functions: the module from which authors import them."""

from foldflight.ext.dialects.pyflink import AggregateFunction, DataTypes, ListView, MapView, Row

__all__ = ["AggregateFunction", "DataTypes", "ListView", "MapView", "Row"]
