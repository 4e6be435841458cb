"""Makes the two wheels of this checkout, and prints where they are.

pure     for every Python and torch that is supported (py3-none-any), as a package index takes it. The native runtime
         is built where it is installed, by g++, on first use.
native   with the native runtime of this torch and Python in it, so that machines with the same ones need no g++ to use
         it. Its version says for which torch it was made, its tag for which Python and platform; package indexes like
         PyPI take no such version, so it is for an index or a folder of your own. Another torch or Python can use it
         too, and builds its own runtime. One that this machine has built already is not built again.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PURE = """
import setuptools

setuptools.setup()
"""
BINARY = """
import setuptools

class Binary(setuptools.Distribution):
    def has_ext_modules(self):  # it has one, which setuptools has not built: the wheel is of this platform
        return True

setuptools.setup(distclass=Binary)
"""


def make(into: Path, native: bool) -> Path:
    """A wheel in the folder ``into``, from a copy of the sources."""
    with tempfile.TemporaryDirectory(prefix="jit-wheel-") as work:
        copy = Path(work)
        shutil.copytree(ROOT / "jit", copy / "jit", ignore=shutil.ignore_patterns("__pycache__", "prebuilt"))
        for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, copy / name)
        (copy / "setup.py").write_text(BINARY if native else PURE)
        if native:
            put_runtime(copy)
        subprocess.run([sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_wheel", "-d", str(copy / "made")],
                       cwd=copy, check=True)
        (wheel,) = (copy / "made").glob("*.whl")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, into))


def put_runtime(copy: Path) -> None:
    """The native runtime into a copy of the sources, and into its version for which torch it is."""
    import torch

    from jit.runtime import build

    made_for = "torch" + re.sub("[^a-z0-9]+", ".", torch.__version__.lower())
    settings = (copy / "setup.cfg").read_text()
    (copy / "setup.cfg").write_text(re.sub(r"^(version = \S+)$", rf"\1+{made_for}", settings, count=1, flags=re.M))
    build.put_prebuilt(str(copy / "jit" / "runtime" / "prebuilt"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", default=str(ROOT / "dist"), help="folder of the wheels (default: dist)")
    parser.add_argument("--kind", choices=("pure", "native", "both"), default="both", help="default: both")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    for kind in ("pure", "native"):
        if args.kind in (kind, "both"):
            print(make(Path(args.into), kind == "native"), flush=True)


if __name__ == "__main__":
    main()
