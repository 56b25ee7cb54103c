"""What stored runs say, to people and to other machines: tables, JSON and CSV, histories, runs sent to a service."""
