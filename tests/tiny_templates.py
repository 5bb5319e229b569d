"""Small chat templates of the shapes that vendors' templates have, for the tiny byte-level tokenizer."""

import shutil
from pathlib import Path

import tiny

HEADER = "{{- '<|im_start|>' + m.role + '\n' -}}"
END = "{{- '<|im_end|>\n' -}}"
PROMPT = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
# Qwen3-2507-Thinking: the generation prompt opens the reasoning, and a rendered answer always has some.
ALWAYS_THINKS = (
    "{%- for m in messages -%}" + HEADER + "{%- if m.role == 'assistant' and loop.last -%}"
    "{{- '<think>\n' + (m.reasoning_content | default('')).strip('\n') + '\n</think>\n\n' -}}{%- endif -%}"
    "{{- m.content -}}" + END + "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n<think>\n' -}}{%- endif -%}"
)
# DeepSeek-R1: the generation prompt opens the reasoning, and a rendered answer has lost it.
DROPS_REASONING = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}<|im_start|>{{ m.content }}{%- else -%}"
    "<|unused|>{{ m.content.split('</think>')[-1] }}<|im_end|>{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|unused|>{{ '<think>\n' }}{%- endif -%}"
)
# GLM-4.5: empty reasoning right after the role, no end of turn but the next role's token.
GLM = (
    "{%- for m in messages -%}{%- if m.role == 'user' -%}{{ '<|user|>\n' + m.content }}"
    "{{- '/nothink' if enable_thinking is defined and not enable_thinking else '' }}"
    "{%- else -%}{{ '<|assistant|>\n<think>' + (m.reasoning_content | default('') if loop.last else '') }}"
    "{{- '</think>\n' + m.content.strip() }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>"
    "{{- '\n<think></think>' if enable_thinking is defined and not enable_thinking else '' -}}{%- endif -%}"
)
# Gemma 4: without thinking the generation prompt holds an empty channel that a rendered answer lacks.
GEMMA4 = (
    "{%- for m in messages -%}{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{%- if m.reasoning_content is defined and loop.last -%}"
    "{{ '<|channel>thought\n' + m.reasoning_content + '<channel|>' }}{%- endif -%}"
    "{{ m.content | trim }}{{ '<turn|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|turn>model\n' }}"
    "{%- if not enable_thinking | default(false) -%}{{ '<|channel>thought\n<channel|>' }}{%- endif -%}{%- endif -%}"
)
# Gemma 3: a name for the role that is set in both branches, and is no variable that a user could set.
NAMES_ROLES = (
    "{%- for m in messages -%}{%- if m.role == 'assistant' -%}{%- set role = 'model' -%}"
    "{%- else -%}{%- set role = m.role -%}{%- endif -%}"
    "{{ '<|im_start|>' + role + '\n' + m.content | trim }}{{ '<|im_end|>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>model\n' }}{%- endif -%}"
)
# Llama 3.1: the template may set ``tools``, and else reads what it is given.
RENAMES_TOOLS = (
    "{%- if custom_tools is defined -%}{%- set tools = custom_tools -%}{%- endif -%}"
    "{%- if not tools is defined -%}{%- set tools = none -%}{%- endif -%}{{ tools }}"
)
TRIMS = (
    "{%- for m in messages -%}" + HEADER + "{{ m.content | trim }}<|im_end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
NO_END = (
    "{%- for m in messages -%}{{ m.role + ': ' + m.content + '\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"
)
NO_GENERATION_PROMPT = "{%- for m in messages -%}" + HEADER + "{{- m.content -}}" + END + "{%- endfor -%}"
TOOLS = "{%- for t in tools or [] -%}{{ '[' + t.function.name + ']' }}{%- endfor -%}"
CALLS_OBJECT = (
    TOOLS + "{%- for m in messages -%}" + HEADER + "{{- m.content -}}{%- for c in m.tool_calls or [] -%}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }}){%- endfor -%}"
    + END
    + "{%- endfor -%}"
    + PROMPT
)
CALLS_TEXT = (
    "{%- for m in messages -%}" + HEADER + "{{- m.content -}}{%- for c in m.tool_calls or [] -%}"
    "{{ c.function.name + ' ' + c.function.arguments }}{%- endfor -%}" + END + "{%- endfor -%}" + PROMPT
)
CALLS_PRINTED = CALLS_TEXT.replace("c.function.name + ' ' + c.function.arguments", "c.function.arguments")
# DeepSeek-V3: calls are shown only beside a content that is None.
CALLS_WITHOUT_CONTENT = (
    "{%- for m in messages -%}" + HEADER + "{%- if m.content is none -%}{%- for c in m.tool_calls -%}"
    "{{ c.function.name + ' ' + c.function.arguments }}{%- endfor -%}{%- else -%}{{- m.content -}}{%- endif -%}"
    + END + "{%- endfor -%}" + PROMPT
)  # fmt: skip


# Qwen3: without thinking the generation prompt has empty reasoning; and a variable of its own, ``style``.
SWITCHED = (
    "{{- style | default('') -}}"
    + NO_GENERATION_PROMPT
    + "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}"
    "{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}"
    "{%- endif -%}"
)


def folder_with(template: str, folder: Path, target_folder: Path) -> Path:
    """A copy of ``target_folder`` in ``folder`` whose chat template is ``template``."""
    shutil.copytree(target_folder, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def tokenizer(template: str, *tokens: str):
    """The tiny tokenizer with ``template``, and with special ``tokens`` of its own."""
    made = tiny.tokenizer()
    if tokens:
        made.add_special_tokens({"additional_special_tokens": list(tokens)})
    made.chat_template = template
    return made
