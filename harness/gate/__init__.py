"""The gate: two trees measured in pairs or taken from the store, judged by policy and waivers, and reported."""
