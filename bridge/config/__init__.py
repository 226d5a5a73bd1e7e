"""The configuration file of the hub: strict YAML, one pydantic model for each section."""
