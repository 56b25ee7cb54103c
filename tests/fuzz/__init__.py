"""Fuzzing of everything that reads files of people and other tools; `python -m tests.fuzz` uses atheris."""
