"""A program to be packed by PyInstaller: the server beside a desktop program, for computers without Python.

    pip install 'edgeinfer[server]' pyinstaller
    pyinstaller --onedir --name edgeinfer-sidecar examples/sidecar_program.py
    dist/edgeinfer-sidecar/edgeinfer-sidecar serve -m model.gguf --port 0 --ready-json --token-env NAME --parent-pid N

It is the whole command line, so that `run`, `chat` and the others work too. Kernels are compiled by the first start,
and kept for the user; the second one compiles nothing.
"""

from edgeinfer.app.cli import main

if __name__ == "__main__":
    main()
