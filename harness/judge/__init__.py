"""From timings to verdicts: intervals, comparisons, change points. Pure, and knows no database."""
