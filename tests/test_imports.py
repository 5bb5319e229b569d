"""The one import direction: data_specs <- pipeline <- stages <- pipeline/__main__.py."""

import ast
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [p for top in ("data_specs", "pipeline", "stages") for p in sorted((ROOT / top).rglob("*.py"))]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_direction(path: Path) -> None:
    place = path.relative_to(ROOT)
    found = imports(path)
    tops = {name.split(".")[0] for name in found}
    if place.parts[0] == "data_specs":
        assert not tops & {"torch", "hydra", "omegaconf", "pipeline", "stages"}
    if place.parts[0] == "pipeline" and place.name != "__main__.py":
        assert "stages" not in tops
    if place.parts[0] == "stages" and len(place.parts) > 2:
        others = {".".join(n.split(".")[:2]) for n in found if n.startswith("stages.")}
        assert others <= {f"stages.{place.parts[1]}"}, "a stage imports another"
    assert "wandb" not in tops or place.as_posix() == "pipeline/store/tracking.py"
    assert "deepspeed" not in tops or place.as_posix() == "stages/train/trainer.py"


def test_no_pickle_and_no_remote_code() -> None:
    for path in SOURCES:
        assert "pickle" not in imports(path), path
        assert "trust_remote_code=True" not in path.read_text(), path


MOST_LINES, MOST_MODULES, MOST_OF_EVALUATE = 400, 14, 6


def test_no_file_is_long() -> None:
    files = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_no_folder_is_a_library() -> None:
    modules = Counter(
        path.parent.relative_to(ROOT).as_posix() for path in SOURCES if path.name != "__init__.py"
    )
    assert {folder: count for folder, count in modules.items() if count > MOST_MODULES} == {}
    assert modules["stages/evaluate"] <= MOST_OF_EVALUATE


def test_every_module_has_its_tests() -> None:
    places = [path.relative_to(ROOT) for path in SOURCES if not path.name.startswith("__")]
    lacking = [
        place.as_posix()
        for place in places
        if not (ROOT / "tests" / place.parent / f"test_{place.name}").is_file()
    ]
    assert lacking == []


def test_no_import_circle() -> None:
    """Also where one of the imports stands in a function."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    graph = {}
    for name, path in names.items():
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        found = {node.module for node in nodes} | {f"{n.module}.{a.name}" for n in nodes for a in n.names}
        graph[name] = sorted(found & set(names))
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
