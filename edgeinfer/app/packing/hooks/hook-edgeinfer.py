"""Include all modules, which are found by their folders, and their sources, which compiled kernels are named after."""

import importlib.metadata
import importlib.util
from contextlib import suppress

from PyInstaller.utils.hooks import collect_data_files, collect_submodules, copy_metadata

module_collection_mode = {"edgeinfer": "pyz+py"}
hiddenimports = collect_submodules("edgeinfer", filter=lambda name: not name.startswith("edgeinfer.app.packing"))
if importlib.util.find_spec("textual") is not None:
    hiddenimports.append("textual.drivers.web_driver")  # selected by a name in the environment
datas = collect_data_files("edgeinfer")
if importlib.util.find_spec("textual_serve") is not None:
    datas += collect_data_files("textual_serve")  # scripts and fonts of the web page
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
    "textual-serve",
):
    with suppress(importlib.metadata.PackageNotFoundError):
        datas += copy_metadata(package)
