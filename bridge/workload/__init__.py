"""From pods to what is asked of a batch system."""
