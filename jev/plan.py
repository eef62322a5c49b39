"""What a request asks of the model, in token ids: the one object between prompt and answers."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jev.extractors import Evidence
from jev.model.pixels import Patches
from jev.model.read import Canvas
from jev.schemas import Noul, Question, SystemOneRequest, Warning

if TYPE_CHECKING:
    from jev.calibration.apply import Active


def alternatives(question: Question) -> int:
    """How many answers a question can have."""
    return 2 if isinstance(question, Noul) else len(question.criteria)


@dataclass(frozen=True)
class Slot:
    """One answer row of a canvas.

    Attributes:
        question: id of the question it answers.
        position: row in the canvas.
        labels: token ids, in the order the prompt lists the labels.
        order: for each label the alternative (yes/no, option or level index) it stands for.
    """

    question: str
    position: int
    labels: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class PlacedImage:
    """An image among prompt ids: its rows are `tokens` image ids from index `start` on.

    Attributes:
        start: index of the first row.
        sha256: what the rows' content is keyed by.
        patches: the image, ready for the vision tower.
    """

    start: int
    sha256: str
    patches: Patches = field(repr=False, compare=False)


@dataclass(frozen=True)
class Unit:
    """A branch behind a prefix and the canvas that is laid after it; reads differ by noise alone.

    Attributes:
        prefix: ids whose keys and values may be shared with other requests.
        branch: ids behind the prefix.
        canvas: ids of all canvas rows; what stands at the slots is overwritten by noise.
        slots: the rows that are read.
        noise: what decides the noise together with the read number.
        prefix_images: images among the prefix's ids.
        branch_images: images among the branch's ids.
    """

    prefix: tuple[int, ...]
    branch: tuple[int, ...]
    canvas: tuple[int, ...]
    slots: tuple[Slot, ...]
    noise: NoiseSource
    prefix_images: tuple[PlacedImage, ...] = ()
    branch_images: tuple[PlacedImage, ...] = ()

    @property
    def prefix_key(self) -> bytes:
        """What decides the prefix's keys and values, as a digest."""
        digest = hashlib.sha256(array("q", self.prefix).tobytes())
        for image in self.prefix_images:
            digest.update(image.sha256.encode())
        return digest.digest()

    def noise_ids(self, read: int) -> tuple[int, ...]:
        """One id a slot, uniform over the vocabulary, for read number `read`."""
        return tuple(self.noise.draw(read, index) for index in range(len(self.slots)))

    def seeded(self, read: int, *, mass: bool = False) -> Canvas:
        """The canvas of read number `read`; `mass` asks for the probability of all its labels too."""
        ids = list(self.canvas)
        for slot, noise in zip(self.slots, self.noise_ids(read), strict=True):
            ids[slot.position] = noise
        return Canvas(
            tuple(ids),
            tuple(slot.position for slot in self.slots),
            tuple(slot.labels for slot in self.slots),
            mass,
        )


@dataclass(frozen=True)
class NoiseSource:
    """Counter-based noise: a hash of what may decide it, equal on every machine and Python.

    `key` is the content of the question (isolated layout) or empty (joint layout, where the seed
    already differs by chunk); `stride` is what the seed grows by from read to read.
    """

    vocab_size: int
    seed: int
    key: bytes = b""
    stride: int = 0

    def draw(self, read: int, slot: int) -> int:
        """A token id in [0, vocab_size)."""
        seed = (self.seed + self.stride * read) % 2**32
        text = b"%d/%d/%d/" % (seed, 0 if self.stride else read, slot)
        return int.from_bytes(hashlib.sha256(text + self.key).digest()[:16]) % self.vocab_size


@dataclass(frozen=True)
class Group:
    """Units that are read the same number of times, because they decide the same questions."""

    units: tuple[Unit, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Adapted:
    """The adapter that a request is answered with: its name, and a digest of what it does."""

    name: str
    digest: str


@dataclass(frozen=True)
class Plan:
    """A checked request, ready to run.

    Attributes:
        request: the request.
        groups: what is read; questions with a single alternative need no read and are in none.
        input_tokens: prompt tokens as billed, each prompt once however often it is read.
        output_tokens: canvas rows of one read.
        evidence: the attachments that the prompt holds.
        calibration: what the probabilities go through; None = they are answered as they are.
        adapter: what the model runs with; None = as it was loaded.
    """

    request: SystemOneRequest
    groups: tuple[Group, ...]
    input_tokens: int
    output_tokens: int
    evidence: tuple[Evidence, ...] = ()
    calibration: Active | None = None
    adapter: Adapted | None = None

    @property
    def warnings(self) -> list[Warning]:
        """What the caller should know about the answers."""
        return [] if self.calibration is None else list(self.calibration.warnings)

    def calibrated(self, question: str, probabilities: Sequence[float]) -> list[float]:
        """The mean distribution of a question -> the one that is answered."""
        if self.calibration is None:
            return list(probabilities)
        return self.calibration.probabilities(question, probabilities)

    @property
    def tokens(self) -> int:
        """Rows that it asks of the model at least: the prompt, and the canvas of every first read."""
        return self.input_tokens + self.output_tokens * self.first_reads

    @property
    def questions(self) -> int:
        """How many questions are asked."""
        return len(self.request.questions)

    @property
    def units(self) -> list[Unit]:
        """All units in order."""
        return [unit for group in self.groups for unit in group.units]

    @property
    def first_reads(self) -> int:
        """Reads of every unit before any extension."""
        return 1 if self.request.samples == "auto" else self.request.samples


def content_key(tokens: Sequence[int]) -> bytes:
    """A question's content as bytes, for `NoiseSource.key`."""
    return b",".join(b"%d" % token for token in tokens)
