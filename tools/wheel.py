"""Makes a wheel with the native runtime in it, so that machines with the same torch and Python need no g++ to use it.

Its version says for which torch it was made, its tag for which Python and platform. Another torch or Python can use it
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
SETUP = """
import setuptools

class Binary(setuptools.Distribution):
    def has_ext_modules(self):  # it has one, which setuptools has not built: the wheel is of this platform
        return True

setuptools.setup(distclass=Binary)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", default=str(ROOT / "dist"), help="folder of the wheel (default: dist)")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    import torch

    from jit.runtime import build

    with tempfile.TemporaryDirectory(prefix="jit-wheel-") as work:
        copy = Path(work)
        shutil.copytree(ROOT / "jit", copy / "jit", ignore=shutil.ignore_patterns("__pycache__", "prebuilt"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copyfile(ROOT / name, copy / name)
        made_for = "torch" + re.sub("[^a-z0-9]+", ".", torch.__version__.lower())
        settings = (ROOT / "setup.cfg").read_text()
        settings = re.sub(r"^(version = \S+)$", rf"\1+{made_for}", settings, count=1, flags=re.M)
        (copy / "setup.cfg").write_text(settings)
        (copy / "setup.py").write_text(SETUP)
        build.put_prebuilt(str(copy / "jit" / "runtime" / "prebuilt"))
        subprocess.run([sys.executable, "-W", "ignore", "setup.py", "-q", "bdist_wheel", "-d", str(copy / "made")],
                       cwd=copy, check=True)
        (wheel,) = (copy / "made").glob("*.whl")
        Path(args.into).mkdir(parents=True, exist_ok=True)
        print(shutil.copy(wheel, args.into))


if __name__ == "__main__":
    main()
