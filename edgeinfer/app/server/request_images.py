"""The images of requests: read from data URLs, or fetched from addresses where the server was started to do so.

In: data URLs and addresses, and where a request has them. Out: `edgeinfer.Image`s, not decoded yet. APIError says what
is wrong with which; its code is one of OpenAI's where there is one.
"""

from __future__ import annotations

import base64

from edgeinfer.app.server.base64_fields import bad_base64, decoded_base64
from edgeinfer.app.server.errors import APIError
from edgeinfer.app.server.fetched_files import FetchedFiles
from edgeinfer.errors import BadImage, DownloadFailed
from edgeinfer.models.download.public import FetchedFile, fetch_public, is_web_address
from edgeinfer.models.images.decoding import MOST_BYTES
from edgeinfer.models.images.image import Image
from edgeinfer.steps import READING_IMAGES, Progress, no_progress

MOST_IMAGES = 100
"""Most images of one request."""
MOST_PIXELS = 500_000_000
"""Most pixels of all images of one request; each may have up to `models.images.decoding.MOST_PIXELS`."""
MOST_FETCHED_BYTES = MOST_BYTES
"""Most bytes of all images that are fetched for one request."""
FETCH_S = 20.0
"""Most seconds that an image may take to be fetched."""
DATA_URL = "data:image/png;base64,…"


class RequestImages:
    """Reads the images of one request. `fetches`: http(s) addresses too. `go_on`: raises to end the work.

    `kept`: what was fetched for earlier requests. `fetched`: images of this one's addresses.
    """

    def __init__(
        self, go_on: Progress = no_progress, *, fetches: bool = False, kept: FetchedFiles | None = None
    ) -> None:
        self.go_on, self._fetches, self._kept = go_on, fetches, FetchedFiles() if kept is None else kept
        self._n_images = self._n_pixels = 0
        self.fetched: dict[str, Image] = {}

    def read(self, address: str, place: str) -> Image:
        """The image at a data URL or an address, whose header is read. `place`: where the request has it."""
        self._n_images += 1
        if self._n_images > MOST_IMAGES:
            raise APIError(400, f"a request may have {MOST_IMAGES} images; send fewer", "too_many_images", place)
        self.go_on(READING_IMAGES, self._n_images - 1, 0)
        is_data = address[:5].lower() == "data:"
        file = FetchedFile(decoded_data(address, place)) if is_data else self._file_at(address, place)
        try:
            image = Image.of(file.data, place)
        except BadImage as reason:
            raise APIError(400, str(reason), "invalid_image", place) from None
        if not is_data:
            self.fetched[address] = image
            self._kept.keep(address, file)
        self._n_pixels += image.size[0] * image.size[1]
        if self._n_pixels > MOST_PIXELS:
            most = f"{MOST_PIXELS // 1_000_000} million pixels"
            raise APIError(400, f"the images of a request may have {most} in all; send fewer", "image_too_large", place)
        return image

    def _file_at(self, address: str, place: str) -> FetchedFile:
        """The file of an image at an address. Raises APIError where nothing is fetched."""
        if address in self.fetched:
            return FetchedFile(self.fetched[address].data, 0)
        if not is_web_address(address):
            told = f"a data URL ({DATA_URL})" + (", or an http or https address" if self._fetches else "")
            raise APIError(400, f"{place} must be {told}", "invalid_image_url", place)
        if not self._fetches:
            told = f"{place}: this server fetches nothing that clients name (`edgeinfer serve --image-urls` would)"
            raise APIError(400, f"{told}; send a data URL ({DATA_URL})", "invalid_image_url", place)
        if (kept := self._kept.get(address)) is not None:
            return kept
        most_bytes = MOST_FETCHED_BYTES - sum(len(image.data) for image in self.fetched.values())
        try:
            return fetch_public(address, most_bytes, FETCH_S, lambda: self.go_on(READING_IMAGES, 0, 0))
        except DownloadFailed as reason:
            raise APIError(400, f"{place}: {reason}", "invalid_image_url", place) from None


def decoded_data(url: str, place: str) -> bytes:
    """The bytes of a data URL of base64. Raises APIError."""
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise bad_base64(place, f"must be base64 ({DATA_URL})", "image")
    return decoded_base64(text, place, "image")


def data_url(image: Image) -> str:
    """An image of a file as a data URL."""
    return f"data:image/{image.format.lower()};base64,{base64.b64encode(image.data).decode()}"
