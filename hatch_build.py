"""Compiles the statistics kernel into the package, where there is a C compiler.

Without one the package works all the same, with the numpy implementation in inc_tb/stats.py.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = Path(self.root, "inc_tb", "_stats.so")
        if compile_kernel(Path(self.root, "inc_tb", "_stats.c"), library):
            build_data["artifacts"].append("/inc_tb/_stats.so")
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


def compile_kernel(source: Path, library: Path) -> bool:
    library.unlink(missing_ok=True)
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform == "win32":
        return False
    command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(library), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"inc-tb: {' '.join(command)} failed, so statistics will use numpy\n{done.stderr}\n")
    return done.returncode == 0
