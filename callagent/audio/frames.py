"""The audio frame that every leg, recogniser and playout exchanges, and the keys of a telephone."""

from __future__ import annotations

SAMPLE_RATE = 8000
"""Hertz of every frame between a leg and the turn manager."""
FRAME_SECONDS = 0.02
FRAME_SAMPLES = 160
FRAME_BYTES = 320
"""20 ms of 16-bit little-endian mono PCM at 8 kHz."""
DIGITS = "0123456789*#ABCD"
"""The keys of a telephone, in the order of their event codes (RFC 4733 §3.2)."""
