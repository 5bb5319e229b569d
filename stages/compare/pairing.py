"""Evaluations brought to the same prompts, so that a resample draws the same prompts in all of them.

The interval of a ratio of two drafters is much narrower then than those of the two say: an easy prompt is easy
for both. The prompts are told by their keys, because the index of a prompt depends on how many were selected.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from data_specs.errors import UserError

Key = tuple[str, str]  # benchmark and the prompt's key


class PairingError(UserError):
    """Evaluations that have no prompt in common."""


def common(rounds: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The rounds (data_specs/evaluation.py) of those prompts only that every table has.

    The column ``prompt`` becomes the prompt's number among them, the same in all tables. Raises ``PairingError``
    naming the tables when there is no such prompt.
    """
    keys = {name: _keys(table) for name, table in rounds.items()}
    shared = set.intersection(*(set(listed) for listed in keys.values()))
    if not shared:
        raise PairingError(f"the evaluations of {', '.join(rounds)} have no prompt in common")
    numbers = {key: number for number, key in enumerate(sorted(shared))}
    places = {name: [numbers.get(key, -1) for key in listed] for name, listed in keys.items()}
    return {name: _renumbered(table, places[name]) for name, table in rounds.items()}


def _keys(table: pa.Table) -> list[Key]:
    return list(zip(table["benchmark"].to_pylist(), table["key"].to_pylist(), strict=True))


def _renumbered(table: pa.Table, numbers: list[int]) -> pa.Table:
    """``table`` with ``numbers`` as its prompts, without the rows of a negative one."""
    place = table.schema.get_field_index("prompt")
    column = pa.array(numbers, table.schema.field(place).type)
    return table.set_column(place, table.schema.field(place), column).filter(pa.array(np.array(numbers) >= 0))
