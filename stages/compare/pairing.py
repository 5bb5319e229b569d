"""Reduces evaluations to their common prompts, so that each bootstrap resample draws the same prompts in all of them.

This makes the interval of a ratio of two drafters much narrower, because an easy prompt is easy for both. Prompts are
matched by key, because a prompt's index depends on how many prompts were selected.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from data_specs.errors import UserError

Key = tuple[str, str]  # benchmark and the prompt's key


class PairingError(UserError):
    """The evaluations have no prompt in common."""


def common(rounds: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The rounds (data_specs/evaluation.py) of the prompts that all tables contain.

    The column ``prompt`` becomes a number that is the same in all tables. Raises ``PairingError`` naming the tables if
    they have no prompt in common.
    """
    keys: dict[str, list[Key]] = {
        name: list(zip(table["benchmark"].to_pylist(), table["key"].to_pylist(), strict=True))
        for name, table in rounds.items()
    }
    shared = sorted(set.intersection(*map(set, keys.values())))
    if not shared:
        raise PairingError(f"the evaluations of {', '.join(rounds)} have no prompt in common")
    numbers = {key: number for number, key in enumerate(shared)}
    return {name: _renumbered(table, [numbers.get(k) for k in keys[name]]) for name, table in rounds.items()}


def _renumbered(table: pa.Table, numbers: list[int | None]) -> pa.Table:
    """``table`` with ``numbers`` as its prompts, without the rows that have none."""
    place = table.schema.get_field_index("prompt")
    column = pa.array(numbers, table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column).filter(pc.is_valid(column))
