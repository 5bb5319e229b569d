"""The embedding row that means "not drafted yet": an existing row that no text can contain (pitfall 26)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from data_specs.errors import UserError


class MaskTokenError(UserError):
    """No row of the embedding can be the mask token."""


def choose(tokenizer: Any, rows: int, reserved: Collection[int] = ()) -> int:
    """The id of the mask token for a target with ``rows`` embedding rows.

    It is the first row beyond the tokenizer's tokens, else an added special token without a role: not bos, eos, pad,
    unk, not in the chat template, not in ``reserved``. Raises ``MaskTokenError`` if neither exists.
    """
    beyond: int = max(tokenizer.get_vocab().values()) + 1  # not the number of tokens: ids may have gaps
    if beyond < rows:
        return beyond
    template = str(tokenizer.chat_template or "")
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    for number, token in sorted(tokenizer.added_tokens_decoder.items(), reverse=True):
        if number < rows and number not in roles and number not in reserved and token.content not in template:
            return int(number)
    raise MaskTokenError(
        f"target.mask_token_id: each of the {rows} embedding rows is a token that text may contain; "
        "set an id that your data does not contain"
    )
