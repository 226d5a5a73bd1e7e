"""Equal pods of one owner that are submitted as one array of the batch system."""
