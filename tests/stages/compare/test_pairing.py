import pyarrow as pa
from tiny_errors import refused

from data_specs.evaluation import SCHEMA
from stages.compare.pairing import PairingError, common


def table(*prompts: tuple[str, int, str]) -> pa.Table:
    """A round of each (benchmark, index, key)."""
    rows = [{"benchmark": b, "prompt": i, "key": k, "emitted": 10 * i} for b, i, k in prompts]
    return pa.Table.from_pylist(rows, SCHEMA)


def test_prompts_are_told_by_key_not_by_index() -> None:
    """Of ten selected prompts number 2 may be number 0 of five."""
    found = common({
        "many": table(("math", 0, "x"), ("math", 2, "c"), ("math", 10, "a"), ("chat", 0, "a")),
        "few": table(("math", 0, "a"), ("math", 1, "c"), ("chat", 3, "a")),
    })  # fmt: skip
    read = {
        name: [(r["benchmark"], r["prompt"], r["key"], r["emitted"]) for r in t.to_pylist()]
        for name, t in found.items()
    }
    assert read == {
        "many": [("math", 2, "c", 20), ("math", 1, "a", 100), ("chat", 0, "a", 0)],
        "few": [("math", 1, "a", 0), ("math", 2, "c", 10), ("chat", 0, "a", 30)],
    }
    assert found["few"].schema.equals(SCHEMA)


def test_no_common_prompt_is_an_error_that_names_the_variants() -> None:
    with refused(PairingError, "one", "two"):
        common({"one": table(("math", 0, "a")), "two": table(("math", 0, "b"))})
