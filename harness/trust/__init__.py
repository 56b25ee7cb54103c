"""Whether figures and verdicts are to be believed: the gate's self-tests, planted slowdowns, other clocks."""
