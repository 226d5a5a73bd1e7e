"""The NuNet DMS (device management service) as a pool: its peers are the capacity of one or more virtual nodes."""
