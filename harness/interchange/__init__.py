"""Import of other tools' results, and export in other tools' formats.

nvbench, pytest-benchmark and Google Benchmark are read (`opgauge import`); Parquet, Bencher Metric Format and
github-action-benchmark's JSON are written (`opgauge export`).
"""

from opgauge.harness.interchange.importing import enter_file, import_file

__all__ = ["enter_file", "import_file"]
