"""Opening a model together with the projector with which it reads images.

In: a model on this machine and options. Out: the `Subject`, prepared for rows of images if there is a projector, and
notices. Raises as `open_subject` and `chosen_projector`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.errors import BadSetting, EdgeInferError
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.gguf import GGUFFile
from edgeinfer.models.projector_choice import projectors_of
from edgeinfer.models.projector_file import ProjectorFile, has_projector, open_projector

SEEING = ("cpu", "reference")
"""Devices that take rows of images."""


def open_seeing(path: Path, load: LoadOptions, source: str = "") -> tuple[Subject, tuple[str, ...]]:
    """Open a model with its projector: the one that options name, else one beside it, else one in its file.

    `source`: where the store has it from.
    """
    why = _why_not(load)
    if load.mmproj not in ("auto", "off"):
        if why:
            raise BadSetting(f"images need {why}; leave --mmproj out or change that")
        return replace(_together(path, load, Path(load.mmproj).expanduser()), source=source), ()
    reasons: list[str] = []
    for beside in () if why or load.mmproj == "off" else projectors_of(path, source):
        try:
            return replace(_together(path, load, beside), source=source), ()
        except EdgeInferError as reason:
            reasons.append(f"images cannot be read with {beside.name}: {reason}")
    subject = open_subject(path, load)
    is_off = bool(reasons or why) or load.mmproj == "off"
    if not is_off and isinstance(subject.file, GGUFFile) and has_projector(subject.file.metadata):
        try:
            seeing = _together(path, load, path)
        except EdgeInferError as reason:
            reasons.append(f"images cannot be read with the projector in {path.name}: {reason}")
        else:
            subject.file.close()
            subject = seeing
    return replace(subject, source=source), tuple(reasons[:1])


def _why_not(load: LoadOptions) -> str:
    """What options lack for images; "" if nothing."""
    if load.device not in SEEING:
        return "the cpu (--device cpu)"
    return "a model in this process (no --isolate)" if load.isolate else ""


def _together(path: Path, load: LoadOptions, beside: Path) -> Subject:
    projector = open_projector(beside)
    try:
        subject = open_subject(path, replace(load, rows=True))
        try:
            _check_partner(projector, subject)
        except BaseException:
            subject.file.close()
            raise
    except BaseException:
        projector.close()
        raise
    return replace(subject, projector=projector)


def _check_partner(projector: ProjectorFile, subject: Subject) -> None:
    """Raises BadSetting if a projector's rows are not as wide as the model's."""
    width = 0 if subject.spec is None else subject.spec.inputs.row_width
    if projector.encoder.width != width:
        raise BadSetting(
            f"{projector.file.path.name} makes rows of {projector.encoder.width} numbers, and the model reads rows of "
            f"{width}: it belongs to another model; give the projector of this one (--mmproj)"
        )
