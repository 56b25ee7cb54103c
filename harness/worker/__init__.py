"""What runs in the child process: seeded inputs, a kernel called, checked and measured; what is asked of `ops`."""
