"""Compile `rms_norm.cpp` into `build/`; run once in each tree."""

from pathlib import Path

from torch.utils.cpp_extension import load

FOLDER = Path(__file__).parent
(FOLDER / "build").mkdir(exist_ok=True)
load("rms_norm", [str(FOLDER / "rms_norm.cpp")], build_directory=str(FOLDER / "build"), is_python_module=False)
