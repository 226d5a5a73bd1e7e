"""Commands that run in the containers of running jobs."""
