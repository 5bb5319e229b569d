"""What a system can offer: the Pareto front of per-request speed and throughput, SLA anchors, and fronts compared.

A point is (speed, throughput): tokens a second that a user sees, and tokens a second of the whole system. Both are
better when larger; running more requests at a time trades one for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Point = tuple[float, float]


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other one beats in both, by ascending speed (so by falling throughput)."""
    kept: list[Point] = []
    for speed, throughput in sorted(points, key=lambda point: (-point[0], -point[1])):
        if not kept or throughput > kept[-1][1]:
            kept.append((speed, throughput))
    return kept[::-1]


def offered(points: Sequence[Point], speed: float) -> float | None:
    """Throughput of a ``front`` where every user is to see ``speed``, linear between its points; None beyond them."""
    if not points or speed > points[-1][0]:
        return None
    if speed <= points[0][0]:
        return points[0][1]
    right = next(i for i, (s, _) in enumerate(points) if s >= speed)
    (s0, t0), (s1, t1) = points[right - 1], points[right]
    return t0 + (t1 - t0) * (speed - s0) / (s1 - s0)


def sla(points: Sequence[Point], anchors: Sequence[float]) -> dict[str, float | None]:
    """Anchor (tokens/s/user, as text) -> throughput of the front ``points`` at it; None where it is out of reach."""
    return {f"{anchor:g}": offered(points, anchor) for anchor in anchors}


def shortfall(points: Sequence[Point], reference: Sequence[Point]) -> float:
    """By how much the front ``points`` lies below the front ``reference`` where it does so most (negative: nowhere).

    The multiplicative epsilon indicator of Zitzler et al. (2003), less one: the least share e so that for every point
    (s, t) of the reference, and half-way between two, the front offers (1 - e) s and (1 - e) t at once. A front is
    linear between its points. (The throughput at equal speed alone would say little: where memory binds, twice the
    requests are served at hardly less speed, and the front is nearly vertical.)
    """
    between = [
        ((s0 + s1) / 2, (t0 + t1) / 2) for (s0, t0), (s1, t1) in zip(reference, reference[1:], strict=False)
    ]
    return max(1 - _reach(points, point) for point in (*reference, *between))


def _reach(points: Sequence[Point], wanted: Point) -> float:
    """The largest f so that the front offers f times both numbers of ``wanted``."""
    scaled = [(s / wanted[0], t / wanted[1]) for s, t in points]
    best = max(min(point) for point in scaled)
    for (s0, t0), (s1, t1) in zip(scaled, scaled[1:], strict=False):
        if (t0 > s0) and (t1 < s1):  # both are equal somewhere between
            share = (t0 - s0) / ((t0 - s0) + (s1 - t1))
            best = max(best, s0 + share * (s1 - s0))
    return best
