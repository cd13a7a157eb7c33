"""What numbers mean that several rules give as evidence; those of one rule stand with it."""

from __future__ import annotations

from inc_tb.advise.scene import CLIPPED
from inc_tb.measure.natural import WATCH_DB
from inc_tb.records import Column

LOW = Column("low", label="lower limit", unit="value", help="The lowest value that the quantized type can hold.")
HIGH = Column("high", label="upper limit", unit="value", help="The highest value that the quantized type can hold.")
CLIPPED_SHARE = Column(
    "clipped", label="clipped", unit="share", better="lower", normal=(None, CLIPPED),
    help="Share of the values that lie outside what the quantized type can hold.",
)  # fmt: skip
SCALE = Column("scale", label="scale", unit="value", help="The size of one quantization step.")
FLUSHED_SHARE = Column(
    "flushed", label="flushed to zero", unit="share", better="lower", normal=(None, 0.2),
    help="Share of the non-zero values that become exactly zero.",
)  # fmt: skip
CHANNEL_RATIO = Column(
    "channel_ratio", label="channel ratio", unit="ratio", better="lower", normal=(1, 16),
    help="The largest channel's range over the median channel's. All share one scale, so the small ones get few steps.",
)  # fmt: skip
WEIGHT_SQNR = Column(
    "weight_sqnr_db", label="weight SQNR", unit="dB", better="higher", normal=(WATCH_DB, None),
    help="Signal to noise of the weights after rounding, of the whole or of the median channel, whichever is worse.",
)  # fmt: skip
WEIGHT_CHANNELS = Column(
    "weight_channels", "weight_channels", label="outlier channels of the weights",
    help="Channels of the weights that are much larger than the median one.",
)  # fmt: skip
KIND = Column("type", "text", label="kind", help="The type of op that is known to suffer from quantization.")
