"""From what the caller gives to a checked call."""
