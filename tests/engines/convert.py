"""Runs llama.cpp's convert_hf_to_gguf.py with the tiny tokenizer.

The converter accepts only tokenizers whose hash it knows, so the tiny one is declared to be GPT-2's, which splits bytes
in the same way. llama.cpp also needs a merge, which the tiny tokenizer lacks; prompts of ids never use the one that is
added here. ``$LLAMA_CPP`` is the checkout, and ``export.converter`` is this file.
"""

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    checkout = Path(os.environ["LLAMA_CPP"])
    sys.path[:0] = [str(checkout), str(checkout / "gguf-py")]
    from conversion.base import TextModel
    from gguf import SpecialVocab

    known = TextModel.get_vocab_base_pre

    def guessed(self, tokenizer):
        return known(self, tokenizer) if len(tokenizer) > 1000 else "gpt-2"

    added = SpecialVocab.add_to_gguf

    def merged(self, writer, quiet=False):
        self.merges = self.merges or ["a b"]
        added(self, writer, quiet)

    TextModel.get_vocab_base_pre = guessed
    SpecialVocab.add_to_gguf = merged
    runpy.run_path(str(checkout / "convert_hf_to_gguf.py"), run_name="__main__")
