"""A part that an error does not name must fail the test that asks for it."""

import pytest
from tiny_errors import refused

MESSAGE = "/tmp/pytest-7/a.json: train.lr_decay: expected (2, 3), got -4, 5.5 and 'x' of layers.0.weight"


@pytest.mark.parametrize(
    "part", ["a.json", "train.lr_decay", (2, 3), 2, -4, 5.5, "'x'", "layers.0.weight", "got -4,"]
)
def test_what_is_named_is_found(part: object) -> None:
    with refused(ValueError, part) as error:
        raise ValueError(MESSAGE)
    assert str(error.value) == MESSAGE


@pytest.mark.parametrize("part", ["b.json", "train.lr", 4, 5, 7, "y", "layers"])
def test_what_is_not_named_is_missed(part: object) -> None:
    with pytest.raises(AssertionError, match=str(part)), refused(ValueError, "a.json", part):
        raise ValueError(MESSAGE)


def test_no_error_and_another_one_are_told() -> None:
    with pytest.raises(pytest.fail.Exception), refused(ValueError):
        pass
    with pytest.raises(KeyError), refused(ValueError):
        raise KeyError(1)
