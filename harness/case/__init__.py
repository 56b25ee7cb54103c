"""Cases and case files: YAML is parsed, checked against the ops' rules and expanded into cases."""
