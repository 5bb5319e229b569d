"""How a test asks for an error: by its type and by what its message has to name, not by its wording."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)


@contextmanager
def refused(error: type[E], *parts: object) -> Iterator[pytest.ExceptionInfo[E]]:
    """The body raises ``error``, and its message has each part (a key, file, field or value), in any order.

    A part is literal and stands alone: "train.lr" is not found in "train.lr_decay", nor 4 in "40", "4.5" or "-4".
    """
    with pytest.raises(error) as raised:
        yield raised
    missing = [part for part in parts if not _stands_alone(str(part), str(raised.value))]
    assert not missing, f"expected {missing} in: {raised.value}"


def _stands_alone(part: str, message: str) -> bool:
    after = r"(?!\w|\.\d)" if re.match(r"\w", part[-1]) else ""
    return re.search(rf"(?<![\w-])(?<!\d\.){re.escape(part)}{after}", message) is not None
