"""The scheduler: one view of all waiting pods, decisions, actions."""
