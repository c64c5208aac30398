"""Files of Parquet by writers of several versions, which tests of `scan` read, and the program that wrote them.

python -m tests.spark.scan_files spark      # with PYTHONPATH=.venv-spark-3.5 of `make test-spark`, and so on
python -m tests.spark.scan_files arrow
python -m tests.spark.scan_files duckdb
python -m tests.spark.scan_files polars     # where polars is installed
"""

from pathlib import Path

FILES = Path(__file__).parent
