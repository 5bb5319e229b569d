"""The group ``export``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from data_specs.export import FORMATS
from pipeline.config.rules import EACH_ONCE, Name, one_of


@dataclass
class ExportConfig:
    """Writes drafts in the layouts that engines load (stage=export); imports foreign drafts (stage=import)."""

    formats: Annotated[list[Annotated[str, one_of(*FORMATS)]], EACH_ONCE] = field(default_factory=list)
    name: Name | None = None  # of the artifact; None: the draft's name and the format
    # Hub id (or, for GGUF files, folder) of the target; None: as the draft's manifest says
    target: str | None = None
    # llama.cpp's convert_hf_to_gguf.py or its checkout: export=llama_cpp then writes GGUF files too
    converter: str | None = None
    # interpreter that runs the converter (which imports sentencepiece); None: this one
    python: str | None = None
    outtype: Annotated[str, one_of("auto", "f32", "bf16", "f16")] = "auto"  # numbers in the GGUF files
    repo: str | None = None  # Hub repository of export=hub, owner/name
    push: bool = False  # upload to ``repo``; if false, nothing leaves this machine
    private: bool = True
    license: str | None = None  # of the draft, for the model card

    def contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction in ``export``."""
        if not self.formats:
            yield f"export.formats: expected some of {', '.join(FORMATS)}, got none"
        if self.name is not None and len(self.formats) > 1:
            yield f"export.name={self.name}: expected null, because one name does not fit {len(self.formats)} formats"
        if self.push and ("hub" not in self.formats or not self.repo):
            yield "export.push=true: expected export=hub and export.repo=owner/name"
        if self.converter is not None and "llama_cpp" not in self.formats:
            yield "export.converter: expected export=llama_cpp, the only format with GGUF files"
