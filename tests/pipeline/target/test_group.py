"""Orders between the ranks of a group. tests/stages/cache/test_capture_group.py runs real ranks."""

from typing import Any

import pytest
import torch
from tiny_errors import refused

from data_specs.errors import UserError
from pipeline.config import ConfigError, TargetConfig
from pipeline.target import group as target_group
from pipeline.target.group import TargetGroup, join, together

CPU = torch.device("cpu")


class Fake:
    """A target whose methods record their calls."""

    def __init__(self, group: TargetGroup | None) -> None:
        self.group, self.calls = group, []

    @together
    def run(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls.append(("run", ids.tolist()))
        return ids + 1

    @together
    def check(self) -> None:
        self.calls.append(("check",))
        self.run(torch.tensor([7]))


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The orders that the leader has sent and the follower has not yet read."""
    sent: list[list[Any]] = []
    monkeypatch.setattr(TargetGroup, "_tell", lambda self, kind, content: sent.append([kind, content]))
    monkeypatch.setattr(TargetGroup, "_hear", lambda self: sent.pop(0))
    return sent


def load(group: TargetGroup, made: list[Fake], taps: list[int]) -> Fake:
    assert taps == [0, 2]
    with group.together("load", taps):
        made.append(Fake(group))
    return made[-1]


def test_a_follower_does_what_its_leader_did(wire: list[list[Any]]) -> None:
    """A call inside a method is not an order, because both ranks reach it by themselves."""
    leader, follower = TargetGroup(2, 0, leads=True), TargetGroup(2, 0, leads=False)
    led: list[Fake] = []
    followed: list[Fake] = []

    def lead() -> str:
        target = load(leader, led, [0, 2])
        target.check()
        assert target.run(torch.tensor([1, 2])).tolist() == [2, 3]
        return "the cache"

    assert leader.work(lead, lambda taps: pytest.fail("the leader loads by itself")) == "the cache"
    assert [order[0] for order in wire] == ["load", "call", "call", "done"]
    assert (
        follower.work(lambda: pytest.fail("followed"), lambda taps: load(follower, followed, taps))
        == "the cache"
    )
    assert wire == []
    assert led[0].calls == followed[0].calls == [("check",), ("run", [7]), ("run", [1, 2])]


def test_a_follower_ends_with_its_leader(wire: list[list[Any]]) -> None:
    def lead() -> None:
        raise UserError("sample first: not finite")

    with refused(UserError, "sample first"):
        TargetGroup(2, 4, leads=True).work(lead, lambda taps: None)
    with refused(UserError, "rank 4", "UserError: sample first: not finite"):
        TargetGroup(2, 4, leads=False).work(lambda: None, lambda taps: None)


def test_what_fails_on_all_ranks_is_nobodys_message(wire: list[list[Any]]) -> None:
    """The other ranks have also failed, so an order to them would wait for days."""
    group = TargetGroup(2, 0, leads=True)

    def lead() -> None:
        Fake(group).run(None)  # type: ignore[arg-type]

    with pytest.raises(AttributeError):
        group.work(lead, lambda taps: None)
    assert [order[0] for order in wire] == ["call"]


def test_without_a_group_a_method_is_itself() -> None:
    alone = Fake(None)
    assert alone.run(ids=torch.tensor([3])).tolist() == [4]


def config_of(size: int) -> TargetConfig:
    return TargetConfig(name="tiny", path="somewhere", tensor_parallel=size)


@pytest.mark.parametrize(("ranks", "size"), [("3", 2), ("1", 2), ("2", 4), ("2", 0)])
def test_ranks_that_make_no_whole_groups_are_refused(
    monkeypatch: pytest.MonkeyPatch, ranks: str, size: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", ranks)
    with (
        refused(ConfigError, f"target.tensor_parallel={size}", ranks),
        join(config_of(size), CPU),
    ):
        pass


def test_a_device_other_than_transformers_own_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(target_group.torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(target_group.torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    with (
        refused(ConfigError, "target.device=cpu", "target.device=cuda"),
        join(config_of(2), CPU),
    ):
        pass
