"""What readers felt of it that their stream went on elsewhere."""

import logging
import statistics
from collections.abc import Sequence

from tests.resume.reader import Reader

logger = logging.getLogger("tests")


def log_gaps(what: str, readers: Sequence[Reader]) -> None:
    """The longest time that each of them waited for text."""
    gaps_s = sorted(reader.longest_gap_s for reader in readers)
    p90_s = gaps_s[round(0.9 * (len(gaps_s) - 1))]
    logger.info(
        "%s: %d readers came back; without text for p50 %.2f s, p90 %.2f s, at most %.2f s",
        what, len(gaps_s), statistics.median(gaps_s), p90_s, gaps_s[-1],
    )  # fmt: skip
