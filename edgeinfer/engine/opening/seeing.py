"""Opening a model together with the projector with which it reads images and sound.

In: a model on this machine and options. Out: the `Subject`, prepared for rows if there is a projector, or what the
projector's header says; and notices. Raises as `open_subject` and `open_projector`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from edgeinfer.engine.run.evaluators import Subject, open_subject
from edgeinfer.engine.run.executor import AUTO_DEVICE
from edgeinfer.errors import BadGGUF, BadSetting, EdgeInferError, ModelNotFound
from edgeinfer.graph.graph import ModelSpec
from edgeinfer.load_options import LoadOptions
from edgeinfer.models.gguf import GGUFFile, Header, Metadata
from edgeinfer.models.load import spec_of
from edgeinfer.models.model_projectors import may_hold_projector, projectors_of
from edgeinfer.models.projector_file import ProjectorFacts, facts_of, has_projector, open_projector
from edgeinfer.models.projectors import image_type, sound_type

Opened = TypeVar("Opened")

USUAL_IMAGE = (448, 448)
"""The image by which is seen what a projector's rows are like."""
SEEING = ("cpu", "reference")
"""Devices that take rows of images and sound."""


def open_seeing(path: Path, load: LoadOptions, source: str = "") -> tuple[Subject, tuple[str, ...]]:
    """Open a model with its projector: the one that options name, else one beside it, else one in its file.

    `source`: where the store has it from.
    """
    subject, notices = _first(path, load, source, lambda beside: _together(path, load, beside))
    if subject is None:
        subject = open_subject(path, load)
        if not notices and isinstance(subject.file, GGUFFile):
            seeing, notices = _inner(path, load, subject.file, lambda own: _together(path, load, own))
            if seeing is not None:
                subject.file.close()
                subject = seeing
    if subject.projector is not None:
        notices += silence(subject.projector.facts)
    return replace(subject, source=source), notices


def silence(projector: ProjectorFacts) -> tuple[str, ...]:
    """A notice about an encoder of sound that is left out; () if there is none."""
    why = projector.encoders.no_sound
    return (f"sound cannot be read with {projector.file_name}: {why}",) if why else ()


def projector_facts(
    path: Path, header: GGUFFile | Header, load: LoadOptions, source: str = ""
) -> tuple[ProjectorFacts | None, tuple[str, ...]]:
    """What the projector says with which `open_seeing` would open a model, from headers alone; and notices.

    The device "auto" counts as the one on which a model is opened that has a projector. Raises as `open_seeing` for a
    projector that options name.
    """
    load = replace(load, device=AUTO_DEVICE if load.device == "auto" else load.device)

    def facts(beside: Path) -> ProjectorFacts:
        with open_projector(beside) as projector:
            found = projector.facts
        require_partner(found, spec_of(header.metadata, header.tensors, load.n_context, rows=True))
        return found

    found, notices = _first(path, load, source, facts)
    return (found, notices) if found is not None or notices else _inner(path, load, header, facts)


def fetched_projector(header: Header) -> ProjectorFacts | None:
    """The projector that would be fetched with a model; None if edgeinfer would read nothing with it."""
    projector = header if has_projector(header.metadata) else header.projector
    if projector is None:
        return None
    try:
        found = facts_of(projector.metadata, projector.tensors, "its projector")
        require_partner(found, spec_of(header.metadata, header.tensors, rows=True))
    except EdgeInferError:
        return None
    return found


def _first(
    path: Path, load: LoadOptions, source: str, opened: Callable[[Path], Opened]
) -> tuple[Opened | None, tuple[str, ...]]:
    """What opens a projector that may belong to a model, and notices; None if there is none that does."""
    why = _why_not(load)
    if load.mmproj not in ("auto", "off"):
        if why:
            raise BadSetting(f"images and sound need {why}; leave --mmproj out or change that")
        return opened(_named(Path(load.mmproj).expanduser())), ()
    reasons: list[str] = []
    for beside in () if load.mmproj == "off" else projectors_of(path, source):
        if why:
            return None, (f"images and sound are not read with {beside.name}: that takes {why}",)
        try:
            return opened(beside), ()
        except EdgeInferError as reason:
            reasons.append(f"images cannot be read with {beside.name}: {reason}")
    return None, tuple(reasons[:1])


def _named(path: Path) -> Path:
    """A projector file that options name. Raises ModelNotFound, BadGGUF."""
    if not path.is_file():
        raise ModelNotFound(f"{path} does not exist; mmproj is auto, off, or a projector file (mmproj-….gguf)")
    with GGUFFile.open(path) as file:
        if not has_projector(file.metadata):
            architecture = file.metadata.text("general.architecture", "")[:80]
            raise BadGGUF(
                f"{path.name} is no projector file: its architecture is {architecture!r}; give the mmproj-….gguf that "
                "was published with the model"
            )
    return path


def _inner(
    path: Path, load: LoadOptions, header: GGUFFile | Header, opened: Callable[[Path], Opened]
) -> tuple[Opened | None, tuple[str, ...]]:
    """The same for a projector in a model's own file."""
    if load.mmproj == "off" or not has_projector(header.metadata):
        return None, ()
    if why := _why_not(load):
        return None, (f"images are not read with the projector in {path.name}: that takes {why}",)
    try:
        return opened(path), ()
    except EdgeInferError as reason:
        return None, (f"images cannot be read with the projector in {path.name}: {reason}",)


def may_see(path: Path, load: LoadOptions, source: str = "") -> bool:
    """Whether a model may read images once it is open, as far as options, names of files and headers say."""
    return _may_read(path, load, source, image_type)


def may_hear(path: Path, load: LoadOptions, source: str = "") -> bool:
    """The same for sound."""
    return _may_read(path, load, source, sound_type)


def _may_read(path: Path, load: LoadOptions, source: str, kind_of: Callable[[Metadata], str | None]) -> bool:
    """Whether an encoder of some kind may be opened with a model: the type that headers name is not looked up."""
    device = SEEING[0] if load.device == "auto" else load.device
    if load.mmproj == "off" or _why_not(replace(load, device=device)):
        return False
    if load.mmproj != "auto":
        return _names(Path(load.mmproj).expanduser(), kind_of)
    if any(_names(each, kind_of) for each in projectors_of(path, source)):
        return True
    return may_hold_projector(path) and _names(path, kind_of)  # lists ask this of many models: most are not read for it


def _names(path: Path, kind_of: Callable[[Metadata], str | None]) -> bool:
    try:
        with GGUFFile.open(path) as file:
            return kind_of(file.metadata) is not None
    except EdgeInferError:
        return False


def _why_not(load: LoadOptions) -> str:
    """What options lack for images and sound; "" if nothing."""
    if load.device not in SEEING:
        return "the cpu (--device cpu)"
    return "a model in this process (no --isolate)" if load.isolate else ""


def _together(path: Path, load: LoadOptions, beside: Path) -> Subject:
    projector = open_projector(beside)
    try:
        subject = open_subject(path, replace(load, rows=True))
        try:
            require_partner(projector.facts, subject.spec)
        except BaseException:
            subject.file.close()
            raise
    except BaseException:
        projector.close()
        raise
    return replace(subject, projector=projector)


def require_partner(projector: ProjectorFacts, spec: ModelSpec | None) -> None:
    """Raises BadSetting if a projector's rows are not as wide as the model's, or have positions that it lacks."""
    width = 0 if spec is None else spec.inputs.row_width
    if projector.encoders.width != width:
        raise BadSetting(
            f"{projector.file_name} makes rows of {projector.encoders.width} numbers, and the model reads rows of "
            f"{width}: it belongs to another model; give the projector of this one (--mmproj)"
        )
    images = projector.encoders.images
    has_axes = images is not None and any(tile.axes is not None for tile in images.plan(USUAL_IMAGE).tiles)
    if spec is not None and has_axes and not spec.inputs.axes:
        raise BadSetting(
            f"{projector.file_name} gives three positions to each row, and the model has one a token: it belongs to "
            "another model; give the projector of this one (--mmproj)"
        )
