"""Run seeds: `python -m tests.simulation --help`."""

from __future__ import annotations

import argparse
import logging
from collections import Counter

from tests.simulation.scenario import run_seed


def main() -> None:
    """Run the seeds of the command line, and print a summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one after another")
    arguments = parser.parse_args()
    # Failover logs each loss, which happens all the time here.
    logging.getLogger("foldflight.client").addHandler(logging.NullHandler())
    harms: Counter[str] = Counter()
    replays = rows = commits = retries = 0
    stall_s = seconds = 0.0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        report = run_seed(seed)
        harms += report.harms
        commits, retries = commits + report.commits, retries + report.retries
        replays, rows = replays + report.stats.replays, rows + report.stats.rows_refolded
        stall_s, seconds = max(stall_s, report.stats.stall_s_max), seconds + report.seconds
    harm_text = ", ".join(f"{times} {harm}" for harm, times in harms.most_common()) or "none"
    print(
        f"{arguments.count} seeds, {seconds:.0f} simulated seconds, faults: {harm_text}\n"
        f"{commits} epochs committed, each once with the right results; {replays} replays sent {rows} rows again; "
        f"{retries} partitions were restarted; the longest stall was {stall_s:.1f} s"
    )


if __name__ == "__main__":
    main()
