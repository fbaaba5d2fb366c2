"""Include all modules, which are found by their folders, and their sources, which compiled kernels are named after."""

import importlib.metadata
import importlib.util
from contextlib import suppress

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

module_collection_mode = {"edgeinfer": "pyz+py"}
hiddenimports = collect_submodules("edgeinfer", filter=lambda name: not name.startswith("edgeinfer.app.packing"))
datas = collect_data_files("edgeinfer")
if importlib.util.find_spec("edgeinfer_kernels") is not None:
    hiddenimports.append("edgeinfer_kernels")
    datas += collect_data_files("edgeinfer_kernels")  # kernels compiled beforehand
for package in ("edgeinfer", "numba", "llvmlite"):
    datas += copy_metadata(package)
for package in (
    "fastapi",
    "uvicorn",
    "prometheus_client",
    "llguidance",
    "huggingface_hub",
    "onnxruntime",
    "openvino",
):
    with suppress(importlib.metadata.PackageNotFoundError):
        datas += copy_metadata(package)
