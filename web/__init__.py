"""The dashboard and the API, over what the harness has stored."""
