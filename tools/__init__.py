"""Commands for working on this repository; not part of the distribution."""
