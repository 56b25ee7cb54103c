"""Search for slow and wrong cases: draw, measure, shrink, group."""
