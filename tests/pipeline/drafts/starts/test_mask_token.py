import pytest
import tiny

from pipeline.drafts.starts.mask_token import MaskTokenError, choose


def test_a_row_beyond_the_tokenizer_comes_first() -> None:
    """Pitfall 26: the mask is an existing row, never a token of the data, and never pad or eos."""
    assert choose(tiny.tokenizer(), 272) == 260


def test_else_a_special_token_without_a_role() -> None:
    assert choose(tiny.tokenizer(), 260) == 259, (
        "<|unused|>; the other three are eos, pad and in the template"
    )


def test_else_the_user_must_say() -> None:
    with pytest.raises(MaskTokenError, match="target.mask_token_id"):
        choose(tiny.tokenizer(), 260, reserved={259})


def test_a_gap_among_the_tokenizers_ids_is_none_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its tokens was taken for the first free id, which is a token if another id is free."""
    tokenizer = tiny.tokenizer()
    vocabulary = tokenizer.get_vocab()
    del vocabulary["a"]
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: vocabulary)
    assert (choose(tokenizer, 272), choose(tokenizer, 260)) == (260, 259)
