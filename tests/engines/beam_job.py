"""Runs the functions of `beam_functions` on Beam's DirectRunner; for the interpreter of Beam's environment.

It reads {"rows": [[k, value, weight, word], ...]} from standard input and prints one JSON line, {name: {k: result}}.
"""

import json
import sys
import tempfile
from pathlib import Path

import apache_beam as beam
from beam_functions import AverageFn, PercentagesFn, WeightedMeanFn

CALLS = {
    "average_fn": (AverageFn(), lambda row: row[1]),
    "percentages_fn": (PercentagesFn(), lambda row: row[3]),
    "weighted_mean_fn": (WeightedMeanFn(10.0), lambda row: (row[1] / 4, float(row[2]))),
}


def main():
    rows = json.load(sys.stdin)["rows"]
    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(runner="DirectRunner") as pipeline:
            source = pipeline | beam.Create(rows)
            for name, (function, element) in CALLS.items():
                (
                    source
                    | f"elements of {name}" >> beam.Map(lambda row, element=element: (row[0], element(row)))
                    | f"combine {name}" >> beam.CombinePerKey(function)
                    | f"text of {name}" >> beam.Map(json.dumps)
                    | f"write {name}" >> beam.io.WriteToText(f"{folder}/{name}", shard_name_template="")
                )
        texts = {name: Path(folder, name).read_text() for name in CALLS}
    print(json.dumps({name: dict(map(json.loads, text.splitlines())) for name, text in texts.items()}), flush=True)


main()
