"""Adapters: classes written for other systems, functions in Java, and the protocols of other systems' clients.

The core imports none of them. `foldflight` imports this package, which registers the adapters of classes.
"""

from foldflight.adapters.arrow_udf import ARROW_UDF
from foldflight.adapters.beam import BEAM
from foldflight.adapters.pyflink import PYFLINK
from foldflight.adapters.snowflake import SNOWFLAKE
from foldflight.adapters.spark_aggregator import SPARK_AGGREGATOR
from foldflight.functions.author.adapters import register

for _adapter in (PYFLINK, ARROW_UDF, SPARK_AGGREGATOR, SNOWFLAKE, BEAM):
    register(_adapter)
