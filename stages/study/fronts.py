"""Pareto fronts of speed and throughput, throughput at required speeds (SLA anchors), and how two fronts compare.

A point is (speed, throughput): tokens per second that one user sees, and tokens per second of the whole system. Serving
more requests at a time trades speed for throughput.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Point = tuple[float, float]


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other point beats in both, sorted by ascending speed (so by falling throughput)."""
    kept: list[Point] = []
    for speed, throughput in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not kept or throughput > kept[-1][1]:
            kept.append((speed, throughput))
    return kept[::-1]


def offered(points: Sequence[Point], speed: float) -> float | None:
    """Throughput of a ``front`` at ``speed``, linear between its points; None above its highest speed."""
    if not points or speed > points[-1][0]:
        return None
    if speed <= points[0][0]:
        return points[0][1]
    right = next(i for i, (s, _) in enumerate(points) if s >= speed)
    (s0, t0), (s1, t1) = points[right - 1], points[right]
    return t0 + (t1 - t0) * (speed - s0) / (s1 - s0)


def sla(points: Sequence[Point], anchors: Sequence[float]) -> dict[str, float | None]:
    """Anchor (tokens/s/user, as text) -> throughput of the front ``points`` there; None if the front is slower."""
    return {f"{anchor:g}": offered(points, anchor) for anchor in anchors}


def shortfall(points: Sequence[Point], reference: Sequence[Point]) -> float:
    """The largest share by which the front ``points`` lies below the front ``reference`` (negative if nowhere).

    This is the multiplicative epsilon indicator of Zitzler et al. (2003), less one: the least e such that for every
    point (s, t) of the reference, and every midpoint of two, the front offers (1 - e) s and (1 - e) t at once. Fronts
    are linear between their points. Throughput at equal speed would say little: where memory is the bottleneck, twice
    the requests hardly reduce the speed, so the front is nearly vertical.
    """
    between = [((s0 + s1) / 2, (t0 + t1) / 2) for (s0, t0), (s1, t1) in pairwise(reference)]
    return max(1 - _reach(points, point) for point in (*reference, *between))


def _reach(points: Sequence[Point], wanted: Point) -> float:
    """The largest f such that the front offers f times both numbers of ``wanted``."""
    scaled = [(s / wanted[0], t / wanted[1]) for s, t in points]
    best = max(min(point) for point in scaled)
    for (s0, t0), (s1, t1) in pairwise(scaled):
        if t0 > s0 and t1 < s1:  # the line between them crosses s = t
            share = (t0 - s0) / ((t0 - s0) + (s1 - t1))
            best = max(best, s0 + share * (s1 - s0))
    return best
