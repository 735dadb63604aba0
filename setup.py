"""Builds the extension with CMake, which holds the list of sources, flags and targets.

Environment:
  STAGING_CUDA=auto|on|off   auto (default): as the installed torch; off: CPU only.
  CUDA_HOME                  the CUDA toolkit; else nvcc on PATH, else the pip package
                             nvidia-cuda-nvcc.
  TORCH_CUDA_ARCH_LIST       as for torch's extensions ("9.0;10.0+PTX").
  CMAKE_ARGS                 more arguments for CMake's configuration.
  MAX_JOBS                   compile jobs at once.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class BuildError(SystemExit):
    """Ends the build with a message and nothing else."""


def nvcc_version(home: Path) -> str:
    """Return the toolkit's version, such as "13.0"."""
    nvcc = home / "bin" / "nvcc"
    if not nvcc.is_file():
        return "unknown"
    output = subprocess.run(
        [str(nvcc), "--version"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"release (\d+\.\d+)", output)
    return found[1] if found else "unknown"


def find_toolkit(torch_cuda: str) -> tuple[Path, bool] | None:
    """Return the folder with bin/nvcc, and whether it is the pip package's.

    An nvcc of another CUDA than torch's is passed over, unless CUDA_HOME names it: newer ones
    write PTX that the driver of torch's own may reject, and another major has another cudart.
    """
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(variable)
        if home:
            if not (Path(home) / "bin" / "nvcc").is_file():
                raise BuildError(f"{variable}={home} has no bin/nvcc")
            version = nvcc_version(Path(home))
            if version.partition(".")[0] != torch_cuda.partition(".")[0]:
                raise BuildError(
                    f"{variable}={home} is CUDA {version}, and the installed torch is built for "
                    f"CUDA {torch_cuda}: name a toolkit of that version, or unset {variable}"
                )
            return Path(home), False
    for home in filter(None, [toolkit_on_path()]):
        if nvcc_version(home) == torch_cuda:
            return home, False
    for base in dict.fromkeys([sysconfig.get_path("purelib"), *sys.path]):
        for home in sorted(Path(base).glob("nvidia/cu*")):
            if (home / "bin" / "nvcc").is_file() and nvcc_version(home) == torch_cuda:
                return home, True
    return None


def toolkit_on_path() -> Path | None:
    on_path = shutil.which("nvcc")
    if on_path:
        # nvcc may be a wrapper script somewhere else: ask it where it lives.
        output = subprocess.run(
            [on_path, "-v", "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull],
            capture_output=True, text=True, check=False,
        ).stderr  # fmt: skip
        for line in output.splitlines():
            if line.startswith("#$ TOP="):
                return Path(line.removeprefix("#$ TOP=")).resolve()
        return Path(on_path).resolve().parent.parent
    return None


def toolkit_requirements(torch_cuda: str) -> list[str]:
    """Return nvcc's packages, all of torch's own minor: a newer nvvm's PTX fails in its ptxas."""
    names = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")
    return [f"{name}=={torch_cuda}.*" for name in names]


def cuda_toolkit(torch_cuda: str | None) -> tuple[Path, bool] | None:
    """Decide whether this is a CUDA build; None for a CPU one."""
    wanted = os.environ.get("STAGING_CUDA", "auto").lower()
    if wanted not in {"auto", "on", "off"}:
        raise BuildError(f"STAGING_CUDA must be auto, on or off, got {wanted!r}")
    if wanted == "off":
        return None
    if torch_cuda is None:
        if wanted == "on":
            raise BuildError(
                "STAGING_CUDA=on, but the installed torch is a CPU build. Install a CUDA build "
                "of torch, or build with STAGING_CUDA=off"
            )
        return None
    toolkit = find_toolkit(torch_cuda)
    if toolkit is None:
        raise BuildError(
            f"The installed torch is built for CUDA {torch_cuda}; no such nvcc was found. Either\n"
            f"  pip install {shlex.join(toolkit_requirements(torch_cuda))}\n"
            "or set CUDA_HOME to a CUDA toolkit, or build without CUDA: STAGING_CUDA=off"
        )
    return toolkit


def cmake_architectures() -> str | None:
    """TORCH_CUDA_ARCH_LIST in CMake's words."""
    names = {"turing": "7.5", "ampere": "8.0 8.6", "ada": "8.9", "hopper": "9.0",
             "blackwell": "10.0 12.0"}  # fmt: skip
    torch_list = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if not torch_list:
        return None
    result = []
    for entry in torch_list.replace(";", " ").replace(",", " ").split():
        name, _, ptx = entry.partition("+")
        for version in names.get(name.lower(), name).split():
            number = version.replace(".", "")
            result.append(number if ptx.upper() == "PTX" else f"{number}-real")
    return ";".join(result)


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake targets into the package."""

    def build_extension(self, ext: Extension) -> None:
        try:
            import torch
        except ImportError as error:
            raise BuildError(
                "torch is not installed in this environment. Install the torch that the package "
                "is to run with, then: pip install --no-build-isolation tensor-staging"
            ) from error
        import pybind11

        torch_cuda = torch.version.cuda
        toolkit = cuda_toolkit(torch_cuda)
        tag = f"torch{torch.__version__}-py{sys.version_info[0]}{sys.version_info[1]}"
        build = ROOT / "build" / tag.replace("+", "_")
        build.mkdir(parents=True, exist_ok=True)
        environment = os.environ.copy()
        arguments = [
            "-G", "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            "-DSTAGING_PYTHON=ON",
            "-DSTAGING_TESTS=OFF",
            f"-DSTAGING_TORCH_DIR={Path(torch.__file__).parent}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DSTAGING_CUDA={'ON' if toolkit else 'OFF'}",
        ]  # fmt: skip
        if toolkit:
            home, from_pip = toolkit
            arguments += [f"-DCMAKE_CUDA_COMPILER={home / 'bin' / 'nvcc'}"]
            architectures = cmake_architectures()
            if architectures:
                arguments += [f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"]
            if from_pip:
                # The pip packages have no libcudart.so to link with, only libcudart.so.13.
                links = build / "toolkit"
                links.mkdir(exist_ok=True)
                for library in (home / "lib").glob("libcudart.so.*"):
                    link = links / "libcudart.so"
                    link.unlink(missing_ok=True)
                    link.symlink_to(library)
                paths = [str(links), str(home / "lib"), environment.get("LIBRARY_PATH", "")]
                environment["LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        arguments += os.environ.get("CMAKE_ARGS", "").split()
        jobs = os.environ.get("MAX_JOBS")
        self.build_tree = build
        subprocess.run(
            ["cmake", "-S", str(ROOT), "-B", str(build), *arguments], check=True, env=environment
        )
        subprocess.run(
            ["cmake", "--build", str(build), *(["--parallel", jobs] if jobs else [])],
            check=True,
            env=environment,
        )
        self.install_into(Path(self.build_lib).resolve())

    def install_into(self, prefix: Path) -> None:
        subprocess.run(
            ["cmake", "--install", str(self.build_tree), "--component", "python", "--prefix",
             str(prefix)],
            check=True,
        )  # fmt: skip

    def get_outputs(self) -> list[str]:
        return []

    def copy_extensions_to_source(self) -> None:
        """Install into the source tree, for an editable or in-place build."""
        self.install_into(ROOT)


class MissingToolkit(Command):
    """Prints what pip has to install for nvcc, one a line; nothing where nothing is missing."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        import torch

        cuda = torch.version.cuda
        wanted = os.environ.get("STAGING_CUDA", "auto").lower()
        if cuda is not None and wanted != "off" and find_toolkit(cuda) is None:
            print(*toolkit_requirements(cuda), sep="\n")


setup(
    packages=find_packages(include=["staging", "staging.*"]),
    package_data={"staging": ["py.typed", "*.pyi"], "staging.demo": ["texts/*.txt"]},
    ext_modules=[Extension("staging._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild, "missing_toolkit": MissingToolkit},
    zip_safe=False,
)
