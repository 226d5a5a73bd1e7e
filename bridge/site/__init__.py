"""The submitter: what runs at a site."""
