"""Generated ids -> the message that stands in the history of later turns."""

import pytest
import tiny
import tiny_templates as templates

from pipeline.prompts.replies import reply_message

HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|return|>")
CHANNELS = ("<|channel>", "<channel|>", "<turn|>")


def message(text: str, *tokens: str, prompt: str = "") -> dict | None:
    made = templates.tokenizer(tiny.TEMPLATE, *tokens)
    return reply_message(
        made, *(made(part, add_special_tokens=False)["input_ids"] for part in (prompt, text))
    )


def said(content: str, reasoning: str | None = None) -> dict:
    return {"role": "assistant", "content": content} | ({"reasoning_content": reasoning} if reasoning else {})


@pytest.mark.parametrize(
    ("text", "tokens", "expected"),
    [
        ("yes<|im_end|>", (), said("yes")),
        ("<think>\nhm\n</think>\n\nyes<|im_end|>", (), said("yes", "hm")),
        ("<think>\nhm\n</think>\n\nyes<|im_end|>", ("<think>", "</think>"), said("yes", "hm")),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>",
            HARMONY, said("yes", "hm"),
        ),
        ("<|channel|>final<|message|>yes<|return|>", HARMONY, said("yes")),
        ("<|channel>thought\nhm<channel|>yes<turn|>", CHANNELS, said("yes", "hm")),
        ("[THINK]hm[/THINK]yes<|im_end|>", (), said("yes", "hm")),
    ],
)  # fmt: skip
def test_reasoning_and_answer_are_told_apart(text: str, tokens: tuple[str, ...], expected: dict) -> None:
    assert message(text, *tokens) == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<think>\nhm", ()),
        ("<|channel|>analysis<|message|>hm", HARMONY),
        ("<|channel>thought\nhm", CHANNELS),
    ],
)
def test_an_answer_that_was_cut_inside_its_reasoning_is_none(text: str, tokens: tuple[str, ...]) -> None:
    assert message(text, *tokens) is None


def test_the_prompt_may_have_opened_the_reasoning() -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    assert message("hm\n</think>\n\nyes<|im_end|>", prompt=prompt) == said("yes", "hm")
    assert message("hm", prompt=prompt) is None
    assert message("yes", prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n") == said("yes")
    assert message("yes", prompt="What is <think>?<|im_end|>\n<|im_start|>assistant\n") == said("yes")


def test_no_special_token_stays_in_the_history() -> None:
    """Also one that only tokenizer.json knows as special."""
    made = tiny.tokenizer()
    made.eos_token = "<|endoftext|>"
    ids = made("yes<|im_end|>", add_special_tokens=False)["input_ids"]
    assert reply_message(made, [], ids) == said("yes")


def test_the_tokenizers_own_response_template_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = templates.tokenizer(tiny.TEMPLATE)
    made.response_template = {"any": "thing"}
    asked = []

    def parse(text: str, prefix: str) -> dict:
        asked.append((text, prefix))
        return {"role": "assistant", "content": "yes", "thinking": "hm"}

    monkeypatch.setattr(type(made), "parse_response", lambda _, text, prefix: parse(text, prefix))
    ids = made("yes", add_special_tokens=False)["input_ids"]
    assert reply_message(made, [], ids) == said("yes", "hm") and asked == [("yes", "")]
