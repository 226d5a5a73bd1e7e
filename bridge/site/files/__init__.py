"""Files and trees of a site that others may change at the same time."""
