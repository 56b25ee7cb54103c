"""lerp."""
