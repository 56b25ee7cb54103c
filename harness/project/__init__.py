"""The measured project: its configuration, its revision in git, and the ops that it registers."""
