"""Where figures come from: settings of one or several evaluations, and their lineage."""

from dataclasses import replace

import tiny_summary

from pipeline.report.provenance import ancestry, setting, settings


def rows(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_the_setting_of_one_evaluation():
    (table,) = setting(tiny_summary.evaluation(tiny_summary.summary())).blocks
    found = dict(rows(table))
    assert found["Draft"] == "tiny_dspark" and found["New tokens at most"] == "64"


def test_settings_that_differ_come_first():
    one = tiny_summary.evaluation(tiny_summary.summary(), "a:v0")
    other = tiny_summary.evaluation(tiny_summary.summary("other", dtype="bfloat16", batch=2), "b:v3")
    differ, same = settings([one, other]).blocks
    assert list(differ.columns) == ["", "a:v0", "b:v3"]
    assert rows(differ) == [
        ["Draft", "tiny_dspark", "other"], ["Type", "float32", "bfloat16"], ["Prompts at a time", "1", "2"],
    ]  # fmt: skip
    found = dict(rows(same))
    assert found["Target"] == "tiny" and "Draft" not in found
    (same,) = settings([one, replace(one, label="b")]).blocks
    assert dict(rows(same))["Type"] == "float32"


def test_the_lineage_of_every_evaluation():
    one = tiny_summary.evaluation(tiny_summary.summary())
    bare = replace(one, label="b:v1", fingerprint=None, ancestors=())
    table, other = ancestry([one, bare]).blocks
    assert rows(table) == [
        ["evaluation", "tiny_dspark:v0", "e" * 16, "2026-11-30 03:19 UTC", "f00dcafe1234"],
        ["draft", "tiny_dspark:v2", "d" * 16, "2026-11-30 03:19 UTC", "0123456789ab"],
        ["cache", "not in this store", "c" * 16, "–", "–"],
    ]
    assert table.rows[2][2].data == {"fingerprint": "c" * 64}
    assert rows(other) == [["evaluation", "b:v1", "–", "2026-11-30 03:19 UTC", "f00dcafe1234"]]
