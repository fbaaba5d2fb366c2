"""How likely a candidate is to follow, from what came of claims like its own before.

Memory: a CHANCES record. Every voice makes one claim about every candidate; how often candidates with a claim were
right is counted, and the counts of a candidate's claims are blended in the logistic domain with weights that are
learned as text is generated. How often exactly these claims together were right is counted too, and takes over as it is
seen more often.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.backends.cpu import simd
from edgeinfer.backends.cpu.jit import inline
from edgeinfer.engine.speculation.loops.paths import mix
from edgeinfer.engine.speculation.records import (
    CANDIDATE,
    CHANCES,
    CLAIMS_OFFSET,
    COUNT,
    JOINT,
    LOGIT_RANGE,
    POINTS,
    TABLE_STEPS,
)

chances_at = simd.record_at(CHANCES)
candidate_at = simd.record_at(CANDIDATE)
count_at = simd.record_at(COUNT)
joint_at = simd.record_at(JOINT)
CANDIDATE_BYTES = CANDIDATE.itemsize
COUNT_BYTES = COUNT.itemsize
JOINT_BYTES = JOINT.itemsize
TRUST = np.float32(12.0)
"""Sightings of the same claims together that count as much as the blend."""
MOST_SEEN = np.float32(2000.0)
MOST_SEEN_JOINTLY = np.float32(400.0)
"""Counts are halved beyond these: what is recent counts more."""
CALIBRATION_RATE = np.float32(0.02)
RATE = np.float32(0.003)
"""Of learning the weights."""


@inline
def logit_of(chances, chance):
    """ln(p / (1 - p)), from a table."""
    place = np.int64(chance * np.float32(TABLE_STEPS))
    return simd.load_float(chances.logit_of + 4 * min(max(place, 0), TABLE_STEPS))


@inline
def chance_of(chances, logit):
    """1 / (1 + e^-x), from a table."""
    bounded = min(max(logit, np.float32(-LOGIT_RANGE)), np.float32(LOGIT_RANGE))
    place = (bounded + np.float32(LOGIT_RANGE)) * np.float32(TABLE_STEPS / (2 * LOGIT_RANGE))
    return simd.load_float(chances.chance_of + 4 * np.int64(place))


@inline
def claim_count(chances, candidate, voice):
    """The counts of what a voice claims about the candidate at an address."""
    place = simd.load_int32(candidate + CLAIMS_OFFSET + 4 * voice)
    return count_at(chances.counts + place * COUNT_BYTES)


@inline
def blend(chances, candidate, n_voices):
    """The chance by the claims one by one."""
    logit = simd.load_float(chances.weights + 4 * n_voices)
    for voice in range(n_voices):
        logit += simd.load_float(chances.weights + 4 * voice) * claim_count(chances, candidate, voice).logit
    return chance_of(chances, logit)


@inline
def joint_hash(candidate, n_voices):
    """A hash of all claims about a candidate."""
    mixed = 0
    for voice in range(n_voices):
        mixed = mix(mixed, simd.load_int32(candidate + CLAIMS_OFFSET + 4 * voice))
    return mixed


@inline
def joint_key(mixed):
    """What tells one combination of claims from another in the same place; never 0."""
    return ((mixed >> 30) & 0x3FFFFFFF) + 1


@inline
def joint_place(chances, mixed):
    """The counts that a combination of claims has, or would have."""
    return joint_at(chances.joint + (mixed & ((1 << chances.joint_bits) - 1)) * JOINT_BYTES)


@inline
def estimate(chances, candidate, n_voices):
    """The chance of the candidate at an address."""
    return calibrated(chances, uncalibrated(chances, candidate, n_voices))


@inline
def uncalibrated(chances, candidate, n_voices):
    """The chance by the claims one by one, and by all of them together where that was seen."""
    alone = blend(chances, candidate, n_voices)
    mixed = joint_hash(candidate, n_voices)
    joint = joint_place(chances, mixed)
    if joint.key != joint_key(mixed):
        return alone
    return (joint.accepted + TRUST * alone) / (joint.seen + TRUST)


@inline
def point_of(chances, chance):
    """Where a chance lies among the points of the calibration: 0.0 .. POINTS."""
    place = (logit_of(chances, chance) + np.float32(LOGIT_RANGE)) * np.float32(POINTS / (2 * LOGIT_RANGE))
    return min(max(place, np.float32(0.0)), np.float32(POINTS))


@inline
def calibrated(chances, chance):
    """What came of chances estimated like this: straight between points that are equally far apart as logits."""
    place = point_of(chances, chance)
    low = min(np.int64(place), POINTS - 1)
    share, at = place - np.float32(low), chances.calibration + 4 * low
    return (np.float32(1.0) - share) * simd.load_float(at) + share * simd.load_float(at + 4)


@inline
def calibrate(chances, chance, estimated, outcome):
    """Learn what came of a chance for which was `estimated`, with those of all candidates at its node in mind."""
    place = point_of(chances, chance)
    low = min(np.int64(place), POINTS - 1)
    share, at = place - np.float32(low), chances.calibration + 4 * low
    off = CALIBRATION_RATE * (outcome - estimated)
    simd.store_float(at, bounded(simd.load_float(at) + (np.float32(1.0) - share) * off))
    simd.store_float(at + 4, bounded(simd.load_float(at + 4) + share * off))


@inline
def bounded(chance):
    """Never certain."""
    return min(max(chance, np.float32(0.001)), np.float32(0.999))


@inline
def strongest(chances, candidate, n_voices, own_claims):
    """The voice whose own claim alone says most; `own_claims`: bits of the voices that proposed the candidate."""
    found, highest = 0, np.float32(-1e9)
    for voice in range(n_voices):
        if (own_claims >> voice) & 1 and claim_count(chances, candidate, voice).logit > highest:
            found, highest = voice, claim_count(chances, candidate, voice).logit
    return found


@inline
def count_outcome(chances, candidate, n_voices, was_right):
    """Learn that a candidate followed, or that another token did."""
    outcome = np.float32(1.0) if was_right else np.float32(0.0)
    calibrate(chances, uncalibrated(chances, candidate, n_voices), candidate_at(candidate).chance, outcome)
    step = RATE * (outcome - blend(chances, candidate, n_voices))
    for voice in range(n_voices):
        at = chances.weights + 4 * voice
        simd.store_float(at, simd.load_float(at) + step * claim_count(chances, candidate, voice).logit)
    at = chances.weights + 4 * n_voices
    simd.store_float(at, simd.load_float(at) + step)
    for voice in range(n_voices):
        count = claim_count(chances, candidate, voice)
        count.seen += np.float32(1.0)
        count.accepted += outcome
        if count.seen > MOST_SEEN:
            count.seen *= np.float32(0.5)
            count.accepted *= np.float32(0.5)
        count.logit = logit_of(chances, (count.accepted + np.float32(0.4)) / (count.seen + np.float32(1.0)))
    mixed = joint_hash(candidate, n_voices)
    joint = joint_place(chances, mixed)
    if joint.key != joint_key(mixed):
        if joint.seen > np.float32(2.0):  # the combination that is here was seen more than once: it fades first
            joint.seen *= np.float32(0.5)
            joint.accepted *= np.float32(0.5)
            return
        joint.key = joint_key(mixed)
        joint.seen = np.float32(0.0)
        joint.accepted = np.float32(0.0)
    joint.seen += np.float32(1.0)
    joint.accepted += outcome
    if joint.seen > MOST_SEEN_JOINTLY:
        joint.seen *= np.float32(0.5)
        joint.accepted *= np.float32(0.5)
