"""Draw the pictures of the gallery's pages of vectors from real results: `python docs/gallery_pictures.py`.

The vectors of 384 items lie in a plane of two random directions, in which the pictures show them, so what is drawn is
what the functions return for vectors of their full length.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "service")]

import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402

mpl.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.patches import Ellipse  # noqa: E402

from examples.gallery import centroid, drift, mean_and_covariance, near_duplicates, top_k_similar  # noqa: E402
from foldflight import connect  # noqa: E402
from foldflight.testing import run_epochs  # noqa: E402

ITEMS = 384
COLOURS = {"north": "#2563eb", "south": "#d97706", "east": "#059669"}
GREY = "#94a3b8"
CHOSEN = np.random.RandomState(4)
PLANE = np.linalg.qr(CHOSEN.standard_normal((ITEMS, 2)))[0].T


def cloud(middle: Sequence[float], spread: float, count: int) -> np.ndarray:
    """Return points of the plane around a middle, shape (count, 2)."""
    return np.array(middle) + spread * CHOSEN.standard_normal((count, 2))


def vector(point: np.ndarray) -> list[float]:
    """Return the vector of a point of the plane."""
    found: list[float] = (point @ PLANE).astype(np.float32).tolist()
    return found


@contextmanager
def picture(name: str, panels: int = 1) -> Iterator[Any]:
    """Write what the block draws, and yield its panel, or its panels."""
    plain = {"svg.hashsalt": "foldflight", "font.family": "DejaVu Sans", "font.size": 9}
    with mpl.rc_context({**plain, "axes.spines.top": False, "axes.spines.right": False}):
        figure, drawn = pyplot.subplots(1, panels, figsize=(7, 3.4), layout="constrained")
        yield drawn
        for panel in np.atleast_1d(drawn):
            if not len(panel.get_xticks()):
                panel.spines[["left", "bottom"]].set_visible(False)
        path = ROOT / "docs" / "_static" / f"gallery-{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def draw_centroid() -> None:
    """A window of four epochs over two groups, one of which moves: old rows are retracted."""
    mean = connect(centroid.Centroid)["centroid"]("v")
    windows: list[dict[str, np.ndarray]] = [
        {"north": cloud((0.4 * epoch, math.sin(epoch / 3)), 0.5, 8), "south": cloud((3, -2), 0.5, 8)}
        for epoch in range(16)
    ]
    rows = [[{"k": key, "v": vector(each)} for key, each in _pairs(window)] for window in windows]
    epochs = [[*rows[at], *[("-D", row) for row in (rows[at - 4] if at >= 4 else [])]] for at in range(len(rows))]
    with picture("centroid") as panel:
        for key, colour in list(COLOURS.items())[:2]:
            points = np.concatenate([window[key] for window in windows])
            panel.scatter(*points.T, s=9, color=colour, alpha=0.25, linewidth=0)
        ways: dict[str, list[np.ndarray]] = {"north": [], "south": []}
        for epoch in run_epochs({"mean": mean}, epochs, keys=["k"]):
            for kind, row in epoch.changelog:
                if kind in ("+I", "+U"):
                    ways[row["k"]].append(PLANE @ np.array(row["mean"]))
        for key, way in ways.items():
            panel.plot(*np.array(way).T, color=COLOURS[key], marker="o", markersize=4)
            place = way[-1] if key == "north" else np.array([4, -2])
            panel.annotate(key, place, (12, -4), textcoords="offset points", color=COLOURS[key], weight="bold")
        panel.set(title="The centroid of the last four epochs, after each epoch", xticks=[], yticks=[])
        panel.set_aspect("equal", adjustable="datalim")


def _pairs(window: dict[str, np.ndarray]) -> list[tuple[str, np.ndarray]]:
    return [(key, point) for key, points in window.items() for point in points]


def draw_drift() -> None:
    """Two groups, one of which turns from the tenth epoch on; the first five epochs are what it was before."""
    far = connect(drift.Drift)["drift"]("v", "is_new")
    epochs: list[list[Any]] = []
    for epoch in range(25):
        turn = max(0, epoch - 10) * 0.06
        middles = {"north": (2 * math.cos(turn), 2 * math.sin(turn)), "south": (0.0, 2.0)}
        rows = [
            {"k": key, "v": vector(point), "is_new": epoch >= 5}
            for key, middle in middles.items()
            for point in cloud(middle, 0.4, 20)
        ]
        old = [("-D", row) for row in epochs[epoch - 3][: len(rows)]] if epoch >= 8 else []
        epochs.append([*rows, *old])
    with picture("drift") as panel:
        seen: dict[str, list[tuple[int, float]]] = {"north": [], "south": []}
        for number, epoch in enumerate(run_epochs({"far": far}, epochs, keys=["k"])):
            for kind, row in epoch.changelog:
                if kind in ("+I", "+U") and row["far"] is not None:
                    seen[row["k"]].append((number, row["far"]))
        for key, line in seen.items():
            panel.plot(*zip(*line, strict=True), color=COLOURS[key], marker="o", markersize=3)
            panel.annotate(key, line[-1], (6, -3), textcoords="offset points", color=COLOURS[key], weight="bold")
        panel.axvline(10, color=GREY, linestyle=":")
        panel.annotate(
            "north begins to turn", (10, 0.1), (-6, 0), textcoords="offset points", ha="right", color="#475569"
        )
        panel.set(title="The drift of the last three epochs from the first five", xlabel="epoch", ylabel="1 - cosine")
        panel.set(xlim=(4, 27), ylim=(-0.005, None))


def draw_top_k() -> None:
    """The ten best of the same points by two metrics."""
    points, query = cloud((1, 0.5), 1.2, 120), np.array([1.4, 1.0])
    rows = [{"item": str(at), "v": vector(point), "query": vector(query)} for at, point in enumerate(points)]
    function = connect(top_k_similar.TopKSimilar)["top_k_similar"]
    with picture("top_k_similar", 2) as panels:
        for panel, metric in zip(panels, ("cosine", "l2"), strict=True):
            (epoch,) = run_epochs({"best": function("item", "v", "query", k=10, metric=metric)}, [rows])
            best = [int(each["item"]) for each in epoch.changelog[-1][1]["best"]]
            panel.scatter(*points.T, s=10, color=GREY, linewidth=0)
            panel.scatter(*points[best].T, s=26, color=COLOURS["north"])
            panel.scatter(*query, s=150, marker="*", color=COLOURS["south"], edgecolor="white", zorder=3)
            panel.axline((0, 0), tuple(query), color=GREY, linewidth=0.7, zorder=0)
            panel.set(title={"cosine": 'metric="cosine"', "l2": 'metric="l2"'}[metric], xticks=[], yticks=[])
            panel.set_aspect("equal", adjustable="datalim")


def draw_covariance() -> None:
    """The ellipses of one and two standard deviations, from the covariances of two items."""
    points = CHOSEN.multivariate_normal([1, 2], [[2, 1.2], [1.2, 1]], 250).astype(np.float32)
    rows = [{"v": [*map(float, point), *[0.0] * 14]} for point in points]
    function = connect(mean_and_covariance.MeanAndCovariance)["mean_and_covariance"]
    (epoch,) = run_epochs({"found": function("v")}, [rows])
    found = epoch.changelog[-1][1]["found"]
    matrix = np.array(found["covariance"]).reshape(16, 16)[:2, :2]
    sizes, axes = np.linalg.eigh(matrix)
    with picture("mean_and_covariance") as panel:
        panel.scatter(*points.T, s=9, color=COLOURS["north"], alpha=0.35, linewidth=0)
        for deviations in (1, 2):
            width, height = 2 * deviations * np.sqrt(sizes[::-1])
            angle = math.degrees(math.atan2(axes[1, 1], axes[0, 1]))
            panel.add_patch(
                Ellipse(
                    found["mean"][:2], width, height, angle=angle, fill=False, color=COLOURS["south"], linewidth=1.5
                )
            )
        panel.plot(*found["mean"][:2], marker="o", color=COLOURS["south"])
        panel.set(title="Mean, and one and two standard deviations", xlabel="item 0", ylabel="item 1")
        panel.set_aspect("equal", adjustable="datalim")


def draw_near_duplicates() -> None:
    """How many pairs of each cosine are found, beside the formula of the function's docstring."""
    cosines, count = [0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99], 150
    function = connect(near_duplicates.NearDuplicates)["near_duplicates"]
    shares = []
    for cosine in cosines:
        rows = []
        for pair in range(count):
            first, second = np.linalg.qr(CHOSEN.standard_normal((ITEMS, 2)))[0].T
            other = cosine * first + math.sqrt(1 - cosine * cosine) * second
            rows += [
                {"item": f"{pair}{name}", "v": each.astype(np.float32).tolist()}
                for name, each in (("a", first), ("b", other))
            ]
        (epoch,) = run_epochs({"found": function("item", "v", threshold=cosine - 1e-4)}, [rows])
        found = {item for group in epoch.changelog[-1][1]["found"] for item in group}
        shares.append(sum(f"{pair}a" in found for pair in range(count)) / count)
    with picture("near_duplicates") as panel:
        line = np.linspace(0.45, 0.999, 200)
        panel.plot(line, 1 - (1 - (1 - np.arccos(line) / math.pi) ** 8) ** 16, color=GREY, label="by the formula")
        panel.plot(cosines, shares, "o", color=COLOURS["north"], label=f"of {count} pairs")
        panel.set(title="The share of pairs that is found", xlabel="cosine of the pair", ylim=(0, 1.05))
        panel.legend(frameon=False)


if __name__ == "__main__":
    for draw in (draw_centroid, draw_drift, draw_top_k, draw_covariance, draw_near_duplicates):
        draw()
