"""From timings to verdicts: intervals, comparisons, change points. Pure functions without a database."""
