"""Measures operators, stores the results, judges them."""
