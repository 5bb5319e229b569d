"""llama.cpp's convert_hf_to_gguf.py, which takes tokenizers that it knows by their hash only: the tiny one passes for
GPT-2's, which splits bytes alike. ``$LLAMA_CPP`` is the checkout, ``export.converter`` this file.
"""

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    checkout = Path(os.environ["LLAMA_CPP"])
    sys.path[:0] = [str(checkout), str(checkout / "gguf-py")]
    from conversion.base import TextModel

    known = TextModel.get_vocab_base_pre

    def guessed(self, tokenizer):
        return known(self, tokenizer) if len(tokenizer) > 1000 else "gpt-2"

    TextModel.get_vocab_base_pre = guessed
    runpy.run_path(str(checkout / "convert_hf_to_gguf.py"), run_name="__main__")
