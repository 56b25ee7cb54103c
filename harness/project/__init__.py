"""The project that is measured: its configuration, its revision in git, and the ops that it registers."""
