"""Cases and case files: YAML read into trees, checked by the ops' rules, expanded into cases; their JSON Schema."""
