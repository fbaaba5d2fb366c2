"""One message of a chat, and the plain data that chat templates receive.

In: what callers have: `Message` objects or mappings with "role" and "content". Out: dicts, lists, strings and numbers
only, so that templates never receive objects with methods of their own. Independent of templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from edgeinfer.errors import BadSetting

_MAX_DEPTH = 48
_IMAGES = ("image_url", "input_image")
"""Types of parts that are images in requests to servers."""
_SOUNDS = ("input_audio", "audio_url")
"""Those that are sounds."""
_UNREAD = (*_IMAGES, *_SOUNDS, "video", "video_url", "input_video", "file", "input_file")
"""Types of parts that no chat template writes, so that a model would answer without them."""
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Message:
    """A chat message. `content` is a text, parts (`{"type": "text", "text": …}`), or None beside tool calls.

        llm.chat([edgeinfer.Message("system", "Be brief."), edgeinfer.Message("user", "Hi")], max_tokens=20).read()

    Mappings with "role" and "content" do as well.

    `extra` contains further fields that templates may read: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`,
    …
    """

    role: str
    content: str | Sequence[Mapping[str, object]] | None = ""
    extra: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Message | Mapping[str, object]) -> Message:
        """`value` as a message. Raises BadSetting for a mapping without a role or with a content that is not read."""
        if isinstance(value, Message):
            return value
        role, content = value.get("role"), value.get("content")
        if not isinstance(role, str):
            raise BadSetting(f"a chat message needs a role (system, user, assistant or tool); this one has {role!r}")
        if not (content is None or isinstance(content, str) or _is_parts(content)):
            raise BadSetting(f"the content of a {role} message is {type(content).__name__}; it must be text or parts")
        if content is not None and not isinstance(content, str):
            _require_read(content)
        if content is None and role == "user":
            raise BadSetting("a user message needs content, a text or parts; this one has none")
        if value.get("images"):
            raise BadSetting(
                'an image is a part of the content, {"type": "image", "image": a path or bytes}, before '
                '{"type": "text", "text": …}; the field "images" is not read'
            )
        extra = {name: item for name, item in value.items() if name not in ("role", "content")}
        return cls(role, content, extra)

    @property
    def text(self) -> str:
        """The text of the content: all of it, or its text parts concatenated."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content or () if part.get("type", "text") == "text")

    def with_text_before(self, text: str) -> Message:
        """This message with `text` and an empty line before its content."""
        if isinstance(self.content, str) or self.content is None:
            return Message(self.role, f"{text}\n\n{self.content or ''}", self.extra)
        return Message(self.role, [{"type": "text", "text": f"{text}\n\n"}, *self.content], self.extra)

    def as_mapping(self) -> dict[str, Any]:
        """The dict passed to templates: role and content first, then the extra fields; thoughts by all their names."""
        mapping = {"role": self.role, "content": self.content, **self.extra}
        thoughts = next((mapping[name] for name in _THOUGHTS if mapping.get(name)), None)
        return mapping if thoughts is None else {**dict.fromkeys(_THOUGHTS, thoughts), **mapping}


def plain(value: object, where: str, depth: int = 0) -> Any:
    """A copy of `value` in plain types. Raises BadSetting, naming `where`, for anything JSON cannot represent."""
    if depth > _MAX_DEPTH:
        raise BadSetting(f"{where} is nested more than {_MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item, f"{where}.{name}", depth + 1) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise BadSetting(f"{where} is {type(value).__name__}; a chat template takes text, numbers, lists and mappings")


def _require_read(parts: Sequence[Mapping[str, object]]) -> None:
    """Raises BadSetting for a part that would be left out of the prompt."""
    unread = next((part["type"] for part in parts if part.get("type") in _UNREAD), None)
    if unread in _IMAGES:
        raise BadSetting(
            f'an image is {{"type": "image", "image": a path or bytes}}, not a part of the type {unread!r}'
        )
    if unread in _SOUNDS:
        raise BadSetting(f'a sound is {{"type": "audio", "audio": a path or bytes}}, not a part of the type {unread!r}')
    if unread is not None:
        raise BadSetting(f"a part of a message has the type {unread!r}, which is not read; leave it out")


def _is_parts(content: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    return (
        isinstance(content, Sequence)
        and not isinstance(content, str | bytes)
        and all(isinstance(part, Mapping) for part in content)
    )
