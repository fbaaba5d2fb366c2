"""The probability that a candidate is accepted, from how often similar candidates were.

Memory: an ACCEPTANCE record. Every draft source puts every candidate into one of its confidence buckets. Each bucket
counts how many of its candidates were right; the counts of a candidate's buckets are blended in the logistic domain
with weights that are learned as text is generated. Exact combinations of buckets are counted too, and take over as they
are seen more often.
"""

from __future__ import annotations

import numpy as np

from edgeinfer.engine.speculation.loops.paths import mix
from edgeinfer.engine.speculation.records import (
    ACCEPTANCE,
    BUCKETS_OFFSET,
    CANDIDATE,
    COUNT,
    JOINT,
    LOGIT_RANGE,
    POINTS,
    TABLE_STEPS,
)
from edgeinfer.jit import simd
from edgeinfer.jit.compiler import inline

acceptance_at = simd.record_at(ACCEPTANCE)
candidate_at = simd.record_at(CANDIDATE)
count_at = simd.record_at(COUNT)
joint_at = simd.record_at(JOINT)
CANDIDATE_BYTES = CANDIDATE.itemsize
COUNT_BYTES = COUNT.itemsize
JOINT_BYTES = JOINT.itemsize
TRUST = np.float32(12.0)
"""Sightings of a combination of buckets at which it counts as much as the blend."""
MOST_SEEN = np.float32(2000.0)
MOST_SEEN_JOINTLY = np.float32(400.0)
"""Counts are halved when they exceed these, so that recent outcomes count more."""
CALIBRATION_RATE = np.float32(0.02)
RATE = np.float32(0.003)
"""Learning rate of the weights."""


@inline
def logit_of(acceptance, chance):
    """ln(p / (1 - p)), from a table."""
    place = np.int64(chance * np.float32(TABLE_STEPS))
    return simd.load_float(acceptance.logit_of + 4 * min(max(place, 0), TABLE_STEPS))


@inline
def chance_of(acceptance, logit):
    """1 / (1 + e^-x), from a table."""
    bounded = min(max(logit, np.float32(-LOGIT_RANGE)), np.float32(LOGIT_RANGE))
    place = (bounded + np.float32(LOGIT_RANGE)) * np.float32(TABLE_STEPS / (2 * LOGIT_RANGE))
    return simd.load_float(acceptance.chance_of + 4 * np.int64(place))


@inline
def bucket_count(acceptance, candidate, draft_source):
    """The count of the bucket into which a draft source puts the candidate at an address."""
    place = simd.load_int32(candidate + BUCKETS_OFFSET + 4 * draft_source)
    return count_at(acceptance.counts + place * COUNT_BYTES)


@inline
def blend(acceptance, candidate, n_draft_sources):
    """The probability from the individual buckets."""
    logit = simd.load_float(acceptance.weights + 4 * n_draft_sources)
    for draft_source in range(n_draft_sources):
        weight = simd.load_float(acceptance.weights + 4 * draft_source)
        logit += weight * bucket_count(acceptance, candidate, draft_source).logit
    return chance_of(acceptance, logit)


@inline
def joint_hash(candidate, n_draft_sources):
    """A hash of all buckets of a candidate."""
    mixed = 0
    for draft_source in range(n_draft_sources):
        mixed = mix(mixed, simd.load_int32(candidate + BUCKETS_OFFSET + 4 * draft_source))
    return mixed


@inline
def joint_key(mixed):
    """Distinguishes combinations of buckets that share a place; never 0."""
    return ((mixed >> 30) & 0x3FFFFFFF) + 1


@inline
def joint_place(acceptance, mixed):
    """The place of a combination of buckets in the table; it may hold another combination."""
    return joint_at(acceptance.joint + (mixed & ((1 << acceptance.joint_bits) - 1)) * JOINT_BYTES)


@inline
def estimate(acceptance, candidate, n_draft_sources):
    """The probability of the candidate at an address."""
    return calibrated(acceptance, uncalibrated(acceptance, candidate, n_draft_sources))


@inline
def uncalibrated(acceptance, candidate, n_draft_sources):
    """The probability from the individual buckets, and from their combination if that was seen."""
    alone = blend(acceptance, candidate, n_draft_sources)
    mixed = joint_hash(candidate, n_draft_sources)
    joint = joint_place(acceptance, mixed)
    if joint.key != joint_key(mixed):
        return alone
    return (joint.accepted + TRUST * alone) / (joint.seen + TRUST)


@inline
def point_of(acceptance, chance):
    """The position of a probability among the points of the calibration: 0.0 .. POINTS."""
    place = (logit_of(acceptance, chance) + np.float32(LOGIT_RANGE)) * np.float32(POINTS / (2 * LOGIT_RANGE))
    return min(max(place, np.float32(0.0)), np.float32(POINTS))


@inline
def calibrated(acceptance, chance):
    """How often candidates with this estimate were accepted; linear between points equally spaced in logits."""
    place = point_of(acceptance, chance)
    low = min(np.int64(place), POINTS - 1)
    share, at = place - np.float32(low), acceptance.calibration + 4 * low
    return (np.float32(1.0) - share) * simd.load_float(at) + share * simd.load_float(at + 4)


@inline
def calibrate(acceptance, chance, estimated, outcome):
    """Correct the calibration by an outcome.

    `estimated`: the probability given to the candidate, after scaling with the other candidates at its node.
    """
    place = point_of(acceptance, chance)
    low = min(np.int64(place), POINTS - 1)
    share, at = place - np.float32(low), acceptance.calibration + 4 * low
    off = CALIBRATION_RATE * (outcome - estimated)
    simd.store_float(at, bounded(simd.load_float(at) + (np.float32(1.0) - share) * off))
    simd.store_float(at + 4, bounded(simd.load_float(at + 4) + share * off))


@inline
def bounded(chance):
    """Keep a probability away from 0 and 1."""
    return min(max(chance, np.float32(0.001)), np.float32(0.999))


@inline
def strongest(acceptance, candidate, n_draft_sources, own_buckets):
    """The draft source whose bucket is the likeliest; `own_buckets`: bits of those that proposed the candidate."""
    found, highest = 0, np.float32(-1e9)
    for draft_source in range(n_draft_sources):
        if (own_buckets >> draft_source) & 1 and bucket_count(acceptance, candidate, draft_source).logit > highest:
            found, highest = draft_source, bucket_count(acceptance, candidate, draft_source).logit
    return found


@inline
def count_outcome(acceptance, candidate, n_draft_sources, outcome):
    """Learn whether a candidate followed, as 1.0 or 0.0; or where tokens are drawn, with what probability it would."""
    calibrate(acceptance, uncalibrated(acceptance, candidate, n_draft_sources), candidate_at(candidate).chance, outcome)
    step = RATE * (outcome - blend(acceptance, candidate, n_draft_sources))
    for draft_source in range(n_draft_sources):
        at = acceptance.weights + 4 * draft_source
        simd.store_float(at, simd.load_float(at) + step * bucket_count(acceptance, candidate, draft_source).logit)
    at = acceptance.weights + 4 * n_draft_sources
    simd.store_float(at, simd.load_float(at) + step)
    for draft_source in range(n_draft_sources):
        count = bucket_count(acceptance, candidate, draft_source)
        count.seen += np.float32(1.0)
        count.accepted += outcome
        if count.seen > MOST_SEEN:
            count.seen *= np.float32(0.5)
            count.accepted *= np.float32(0.5)
        count.logit = logit_of(acceptance, (count.accepted + np.float32(0.4)) / (count.seen + np.float32(1.0)))
    mixed = joint_hash(candidate, n_draft_sources)
    joint = joint_place(acceptance, mixed)
    if joint.key != joint_key(mixed):
        if joint.seen > np.float32(2.0):  # the combination stored here was seen more than once: decay it first
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
