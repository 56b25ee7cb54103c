"""Reports of stored runs, for people and other programs: tables, JSON, CSV, histories, pushed runs."""
