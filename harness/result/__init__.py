"""What is measured and what becomes of it: results, whole runs, what they say in short, JSON read strictly."""
