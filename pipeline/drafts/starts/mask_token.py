"""Which embedding row stands for "not drafted yet": an existing row that no text can contain (pitfall 26)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from data_specs.errors import UserError


class MaskTokenError(UserError):
    """No row of the embedding can serve as mask."""


def choose(tokenizer: Any, rows: int, reserved: Collection[int] = ()) -> int:
    """The id of the mask token for a target with ``rows`` embedding rows.

    First choice: a row beyond the tokenizer's tokens. Second: an added special token that has no role (not bos, eos,
    pad, unk, not named in the chat template, not in ``reserved``). Raises ``MaskTokenError`` where there is neither.
    """
    if len(tokenizer) < rows:
        return len(tokenizer)
    template = str(tokenizer.chat_template or "")
    roles = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    for number, token in sorted(tokenizer.added_tokens_decoder.items(), reverse=True):
        if number < rows and number not in roles and number not in reserved and token.content not in template:
            return number
    raise MaskTokenError(
        f"target.mask_token_id: every one of the {rows} embedding rows is a token that text may hold; "
        "name an id that your data does not contain"
    )
